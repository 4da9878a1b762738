package collect

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/internal/mounts"
	"github.com/kvtier/kvtier/telemetry"
)

// TestDiskThatIsFull: on a filesystem without room, and then without inodes, states are told and no
// total falls; with room again all that was counted is told.
func TestDiskThatIsFull(t *testing.T) {
	image := mounts.NewImage(t, "ext4", mounts.Ext4Bytes)
	root := filepath.Join(image.Dir, "local")
	require.NoError(t, os.Mkdir(root, 0o700))
	s := siteAt(t, root)
	p := s.process(1)
	stop := p.push()
	counted := 0.0
	count := func() {
		counted++
		p.source.Meter.Add(promptsTotal, 1)
	}
	count()
	s.awaitTotal(counted)
	m, junk := &monotonic{t: t, root: root}, filepath.Join(image.Dir, "junk")
	fill := func(sizes []int) { // in bytes
		require.NoError(t, os.MkdirAll(junk, 0o700))
		for _, size := range sizes {
			var err error
			for err == nil {
				err = os.WriteFile(filepath.Join(junk, rand.Text()), make([]byte, size), 0o600)
			}
			require.ErrorIs(t, err, unix.ENOSPC)
		}
	}
	for cause, sizes := range map[telemetry.Obstacle][]int{telemetry.ObstacleFull: {1 << 20, 4 << 10}, telemetry.ObstacleInodes: {0}} {
		ended := s.process(2)
		ended.count(1)
		ended.end()
		counted++
		p.prompt(1000001)
		counted++
		s.awaitTotal(counted)
		await(t, "the prompt's words", func() bool { return len(s.with("1000001")) > 0 })
		var told *telemetry.Unstored
		for range 100 {
			fill(sizes)
			for range 3 {
				count()
				m.read()
			}
			later := m.read()
			later.At = later.At.Add(telemetry.SilentAfter)
			tellSilent(&later, s.dir)
			require.Len(t, later.Processes, 1)
			if told = later.Processes[0].Unstored; told != nil {
				break
			} // else a report that was being written has given room back
		}
		require.NotNil(t, told)
		require.Equal(t, cause, told.Cause)
		require.NoError(t, Forget(t.Context(), root, everyModel))
		require.Empty(t, s.with("1000001"))
		require.NoError(t, os.RemoveAll(junk))
		s.awaitTotal(counted)
		await(t, "the report behind a removal", func() bool {
			words, err := os.Stat(p.path(p.name + wordsEnd))
			return err == nil && words.Size() > 0
		})
		require.Empty(t, s.with("1000001"))
	}
	stop()
	require.Equal(t, counted, total(m.read(), promptsTotal))
}
