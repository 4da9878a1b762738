package collect

import (
	"fmt"
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
	m := &monotonic{t: t, root: root}
	fillInodes := func() (empty func()) {
		junk := filepath.Join(image.Dir, "junk")
		require.NoError(t, os.Mkdir(junk, 0o700))
		var err error
		for n := 0; err == nil; n++ {
			err = os.WriteFile(filepath.Join(junk, fmt.Sprint(n)), nil, 0o600)
		}
		require.ErrorIs(t, err, unix.ENOSPC)
		return func() { require.NoError(t, os.RemoveAll(junk)) }
	}
	fillBlocks := func() (empty func()) { return image.Fill(0) }
	for cause, fill := range map[telemetry.Obstacle]func() (empty func()){telemetry.ObstacleFull: fillBlocks, telemetry.ObstacleInodes: fillInodes} {
		ended := s.process(2)
		ended.count(1)
		ended.end()
		counted++
		p.prompt(1000001)
		counted++
		s.awaitTotal(counted)
		require.NotEmpty(t, s.with("1000001"))
		empty := fill()
		for range 3 {
			count()
			m.read()
		}
		later := m.read()
		later.At = later.At.Add(telemetry.SilentAfter)
		tellSilent(&later, s.dir)
		require.Len(t, later.Processes, 1)
		require.NotNil(t, later.Processes[0].Unstored)
		require.Equal(t, cause, later.Processes[0].Unstored.Cause)
		require.NoError(t, Forget(t.Context(), root, everyModel))
		require.Empty(t, s.with("1000001"))
		empty()
		s.awaitTotal(counted)
		require.Empty(t, s.with("1000001"))
	}
	stop()
	require.Equal(t, counted, total(m.read(), promptsTotal))
}
