package diskstore

import (
	"maps"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

// times returns the recency of each page below a root.
func times(t *testing.T, root string) map[string]time.Time {
	at := make(map[string]time.Time)
	for _, path := range filesIn(t, root, dir.PageExt) {
		info, err := os.Stat(path)
		require.NoError(t, err)
		at[path] = info.ModTime()
	}
	return at
}

// PutIfRoom evicts no page, neither at once nor in a later trim, and makes no page more
// recent.
func TestPutIfRoomTakesNoPlace(t *testing.T) {
	page := physicalPage(t)
	s, o := openNew(t, func(o *Options) { o.Local.BudgetBytes = 8 * page })
	old, other := prompt(1, 4*testTokens), prompt(2, 3*testTokens)
	pages := chainOf(t, s, old)
	for _, p := range pages[:3] {
		require.NoError(t, s.PutIfRoom(ctx, p))
	}
	putChain(t, s, other)
	age(t, o.Local.Root, time.Now().Add(-3*time.Hour))
	s.chains.Forget()
	putChain(t, s, prompt(3, testTokens))
	require.NoError(t, s.Flush(ctx))

	before, stats := times(t, o.Local.Root), s.Stats()
	require.Len(t, before, 7)
	require.NoError(t, s.PutIfRoom(ctx, pages[0]), "is stored")
	require.ErrorIs(t, s.PutIfRoom(ctx, pages[3]), tier.ErrNoSpace, "would be trimmed for")
	require.ErrorIs(t, s.PutIfRoom(ctx, chainOf(t, s, prompt(4, 2*testTokens))[1]), tier.ErrNoSpace, "leads nowhere")
	require.NoError(t, s.Flush(ctx))
	require.Equal(t, before, times(t, o.Local.Root))
	require.Equal(t, stats.Evicted, s.Stats().Evicted)
	requireExact(t, s)
}

// A page stored later is as recent as the chain that it continues.
func TestPutIfRoomIsAsRecentAsItsChain(t *testing.T) {
	for name, budget := range map[string]int64{"budget": 1 << 30, "no budget": 0} {
		t.Run(name, func(t *testing.T) {
			s, o := openNew(t, func(o *Options) { o.Local.BudgetBytes = budget })
			pages := chainOf(t, s, prompt(1, 2*testTokens))
			require.NoError(t, s.Put(ctx, pages[0]))
			past := time.Now().Add(-3 * time.Hour).Truncate(time.Second)
			age(t, o.Local.Root, past)
			s.chains.Forget()
			before := times(t, o.Local.Root)
			require.NoError(t, s.PutIfRoom(ctx, pages[1]))
			after := times(t, o.Local.Root)
			require.Len(t, after, 2)
			for path, at := range after {
				if _, ok := before[path]; !ok {
					require.WithinDuration(t, past, at, time.Minute)
				}
			}
			maps.DeleteFunc(after, func(path string, _ time.Time) bool { return before[path].IsZero() })
			require.Equal(t, before, after)
		})
	}
}
