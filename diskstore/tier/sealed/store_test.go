package sealed

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
)

// TestStore: pages move down to a sealed tier. A process with a new key before theirs finds them, by all of their
// tokens and by the first ones.
func TestStore(t *testing.T) {
	below := tiertest.NewMap()
	layout, err := pagefile.NewLayout([]pagefile.Section{{RowBytes: 1024}}, 32)
	require.NoError(t, err)
	fingerprint := pagefile.Key{1}
	open := func(keys ...*key) *diskstore.Store {
		below.Closed = false
		s, err := diskstore.Open(ctx, diskstore.Options{
			Fingerprint: fingerprint, PageTokens: 32, RemoteTier: New(below, keys, quiet()), Logger: quiet(),
			Local: diskstore.TierConfig{Root: filepath.Join(t.TempDir(), "root"), BudgetBytes: 8 * 48 << 10},
		})
		require.NoError(t, err)
		return s
	}
	tokens := func(i int) []int32 {
		all := make([]int32, 32)
		for at := range all {
			all[at] = int32(100*i + at)
		}
		return all
	}
	first := open(keyOf(1))
	const pages = 40
	for i := range pages {
		require.NoError(t, first.Put(ctx, &pagefile.Page{Parent: fingerprint, Tokens: tokens(i), Layout: layout, Payload: bytes.Repeat([]byte{byte(i)}, layout.Size())}))
	}
	require.NoError(t, first.Flush(ctx))
	demoted := first.Stats().Demoted
	require.Positive(t, demoted)
	require.NoError(t, first.Close())

	second := open(keyOf(2), keyOf(1))
	found := uint64(0)
	for i := range pages {
		for _, ref := range second.Find(ctx, diskstore.Prompt{Tokens: tokens(i)}).Exact {
			buf := make([]byte, layout.Size())
			require.NoError(t, second.Read(ctx, ref, tokens(i), layout, diskstore.Into{Rows: buf}))
			require.Equal(t, bytes.Repeat([]byte{byte(i)}, layout.Size()), buf)
			require.Equal(t, tier.Remote, ref.Tier)
			found++
			alike := append(tokens(i)[:20:20], 7, 7, 7)
			refs := second.Find(ctx, diskstore.Prompt{Tokens: alike}).Exact
			require.Len(t, refs, 1, "by a branch")
			require.Equal(t, ref.Key, refs[0].Key)
		}
	}
	require.Equal(t, demoted, found)
	require.NoError(t, second.Close())
}
