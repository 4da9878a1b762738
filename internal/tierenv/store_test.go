package tierenv

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
)

func TestSupersedes(t *testing.T) {
	mine := map[string]string{KeyWeights: "w", KeyEngine: "new", KeyNumerics: "n", KeySchema: "1", KeyPageTokens: "256", KeyCacheType: "f16"}
	with := func(changes ...string) map[string]string {
		other := maps.Clone(mine)
		for i := 0; i < len(changes); i += 2 {
			other[changes[i]] = changes[i+1]
		}
		return other
	}
	require.False(t, supersedes(mine, with()))
	require.True(t, supersedes(mine, with(KeyEngine, "old")))
	require.True(t, supersedes(mine, with(KeyEngine, "old", KeyCacheType, "q8_0")))
	require.True(t, supersedes(mine, with(KeySchema, "0")))
	require.False(t, supersedes(mine, with(KeyCacheType, "q8_0")), "the same engine with other settings")
	require.False(t, supersedes(mine, with(KeyEngine, "old", KeyWeights, "other")))
	require.False(t, supersedes(mine, with(KeyEngine, "old", KeyNumerics, "another machine")))
	require.False(t, supersedes(mine, with(KeyEngine, "old", KeyNamespace, "another team")))
	require.False(t, supersedes(mine, map[string]string{}))
}

// TestReclaim removes pages of another version of the engine a day after their last use, and
// from a remote tier after 30 days.
func TestReclaim(t *testing.T) {
	for where, after := range map[string]time.Duration{"local": reclaimAfter, "remote": reclaimRemoteAfter} {
		t.Run(where, func(t *testing.T) { testReclaim(t, where == "remote", after) })
	}
}

func testReclaim(t *testing.T, remote bool, after time.Duration) {
	root := filepath.Join(t.TempDir(), "pages")
	require.NoError(t, os.Mkdir(root, 0o700))
	open := func(key pagefile.Key, engine string) (*diskstore.Store, map[string]string) {
		identity := map[string]string{KeyWeights: "w", KeyEngine: engine}
		options := diskstore.Options{
			Fingerprint: key, Identity: identity, PageTokens: 16, Local: diskstore.TierConfig{Root: root, BudgetBytes: 1 << 30},
		}
		if remote && engine == "new" { // the pages of the old one lie in the remote tier
			options.Local.Root, options.Remote = filepath.Join(t.TempDir(), "local"), options.Local
		}
		s, err := diskstore.Open(t.Context(), options)
		require.NoError(t, err)
		return s, identity
	}
	layout, err := pagefile.NewLayout([]pagefile.Section{{Kind: pagefile.KindK, RowBytes: 32}}, 16)
	require.NoError(t, err)
	tokens := make([]int32, 16)
	old, _ := open(pagefile.Key{1}, "old")
	require.NoError(t, old.Put(t.Context(), &pagefile.Page{Parent: pagefile.Key{1}, Tokens: tokens, Layout: layout, Payload: make([]byte, layout.Size())}))
	require.NoError(t, old.Close())

	for _, age := range []time.Duration{after - time.Hour, after + time.Hour} {
		require.NoError(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != dir.PageExt {
				return err
			}
			used := time.Now().Add(-age)
			return os.Chtimes(path, used, used)
		}))
		log, lines := tierenvtest.Logger()
		s, identity := open(pagefile.Key{2}, "new")
		usage, err := s.Survey(t.Context())
		require.NoError(t, err)
		Reclaim(t.Context(), s, usage, identity, log)
		require.Equal(t, age < after, holdsPages(root))
		require.Contains(t, lines.String(), map[bool]string{true: "found pages", false: "reclaimed pages"}[age < after])
		require.NoError(t, s.Close())
		lines.Reset()
		Reclaim(t.Context(), s, usage, identity, log)
		require.Empty(t, lines.String(), "closed")
	}
}
