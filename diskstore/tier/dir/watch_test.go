package dir

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestRootIsLookedAtOnceASecond: the root is checked neither at each operation nor only once.
func TestRootIsLookedAtOnceASecond(t *testing.T) {
	root := storetest.PrivateDir(t)
	inj := vfs.Inject(storetest.QuickFS)
	tr := New(inj, root, Options{})
	var now time.Duration
	tr.watch.clock = func() time.Duration { return now }
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
			_, err := tier.Stat(ctx, tr, pagefile.Name{Class: pagefile.ClassPage})
			require.ErrorIs(t, err, tier.ErrNotFound)
		}
		require.Equal(t, step.looks, looks, "at %v", step.at)
	}
}
