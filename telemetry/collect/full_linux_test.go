package collect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/internal/mounts"
)

// TestDiskThatIsFull: on a filesystem without room, and then without inodes, states are told, no
// total falls, and collectors follow each other; with room again all totals are in the file.
func TestDiskThatIsFull(t *testing.T) {
	image := mounts.NewImage(t, "ext4", mounts.Ext4Bytes)
	root := filepath.Join(image.Dir, "local")
	require.NoError(t, os.Mkdir(root, 0o700))
	soon := func(o *Options) { o.Intervals.Disk = time.Second } // a write that failed is tried again
	c := collector(t, root, soon)
	source := testSource(1)
	push := startPush(t, root, source)
	counted := 0.0
	m := &monotonic{t: t, root: root}
	count := func() {
		t.Helper()
		counted++
		source.Meter.Add(promptsTotal, 1)
		await(t, "a report", func() bool {
			s, err := Read(context.Background(), root)
			return err == nil && s.Live && total(s, promptsTotal) == counted
		})
		m.read()
	}
	count()
	for _, fill := range []func(string) error{fillBlocks, fillInodes} {
		junk := filepath.Join(image.Dir, "junk")
		require.NoError(t, os.Mkdir(junk, 0o700))
		require.ErrorIs(t, fill(junk), unix.ENOSPC)
		for range 3 {
			count()
		}
		require.NoError(t, c.stop())
		before := readState(t, root)
		require.False(t, before.Live)
		c = startServe(t, root, soon) // it may lack a socket until there is room
		require.NoError(t, os.RemoveAll(junk))
		count()
	}
	push.stop()
	require.NoError(t, c.stop())
	require.Equal(t, counted, total(readState(t, root), promptsTotal))
}

func fillBlocks(dir string) error {
	f, err := os.Create(filepath.Join(dir, "large"))
	if err != nil {
		return err
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		if _, err = f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	return err
}

func fillInodes(dir string) error {
	for n := 0; ; n++ {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(n)))
		if err != nil {
			if errors.Is(err, unix.ENOSPC) {
				return err
			}
			return fmt.Errorf("make file %d: %w", n, err)
		}
		f.Close()
	}
}
