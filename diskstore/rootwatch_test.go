package diskstore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/vfs"
)

// TestRootIsLookedAtOnceASecond: neither for each operation nor only once.
func TestRootIsLookedAtOnceASecond(t *testing.T) {
	root := privateDir(t)
	inj := vfs.Inject(quickFS)
	tier := newDirTier(inj, root, dirOptions{})
	var now time.Duration
	tier.watch.clock = func() time.Duration { return now }
	looks := 0
	inj.Watch(func(op vfs.Op, paths ...string) {
		if op == vfs.OpLstat && paths[0] == root {
			looks++
		}
	})
	for _, step := range []struct {
		at    time.Duration
		looks int
	}{{0, 1}, {rootCheckEvery - 1, 1}, {rootCheckEvery, 2}, {2*rootCheckEvery - 1, 2}, {2 * rootCheckEvery, 3}} {
		now = step.at
		for range 3 {
			_, err := tier.Stat(ctx, Name{Class: ClassPage})
			require.ErrorIs(t, err, ErrNotFound)
		}
		require.Equal(t, step.looks, looks, "at %v", step.at)
	}
}
