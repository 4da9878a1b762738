package diskstore

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// removeAll removes all pages, as kvtier rm does beside a server.
func removeAll(t *testing.T, o Options) GCReport {
	t.Helper()
	r, err := openRoot(t, o).GC(ctx, GCOptions{Fingerprints: func(FingerprintUsage) bool { return true }})
	require.NoError(t, err)
	return r
}

func manifestPath(root string, fingerprint pagefile.Key) string {
	return filePath(root, pagefile.Name{Fingerprint: fingerprint, Class: pagefile.ClassManifest})
}

// TestPagesAfterARemovalHaveAManifest: pages of a model that is loaded are removed, and the model
// stores pages again. Without a manifest nobody could tell which model these pages are of, and
// the next kvtier rm of the model would find nothing.
func TestPagesAfterARemovalHaveAManifest(t *testing.T) {
	for name, again := range map[string]func(t *testing.T, s *Store, p *pagefile.Page){
		"put": func(t *testing.T, s *Store, p *pagefile.Page) { require.NoError(t, s.Put(ctx, p)) },
		"promotion": func(t *testing.T, s *Store, p *pagefile.Page) {
			info := mustStat(t, s.guard, s.pages.Page(p.Key()))
			s.up.Promote(ctx, info, recency.Place{Parent: p.Parent})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, o := openNew(t, withRemote(t))
			inRemote(t, s, 1)
			p := pageOf(t, o.Fingerprint, 0, prompt(0, testTokens))
			putChain(t, s, prompt(7, testTokens))
			require.NoError(t, s.Flush(ctx))
			removeAll(t, Options{Local: o.Local})
			again(t, s, p)
			require.Len(t, filesIn(t, o.Local.Root, dir.PageExt), 1)
			require.FileExists(t, manifestPath(o.Local.Root, o.Fingerprint))
		})
	}
}

// TestPageThatComesDuringARemoval: a page becomes visible when a removal has listed the pages, and
// before the removal takes the manifest.
func TestPageThatComesDuringARemoval(t *testing.T) {
	s, o := openNew(t)
	putChain(t, s, prompt(1, testTokens))
	require.NoError(t, s.Flush(ctx))
	inj := vfs.Inject(quickFS)
	var once sync.Once
	inj.Watch(func(op vfs.Op, paths ...string) {
		if op == vfs.OpRemove && filepath.Base(paths[0]) == dir.ManifestFile {
			once.Do(func() { putChain(t, s, prompt(2, testTokens)) })
		}
	})
	removing := o
	removing.FS = inj
	require.Zero(t, removeAll(t, removing).Local.Fingerprints, "a page is left")
	require.Len(t, filesIn(t, o.Local.Root, dir.PageExt), 1)
	m, err := tier.ReadManifest(ctx, s.disk, o.Fingerprint)
	require.NoError(t, err)
	require.Equal(t, o.PageTokens, m.PageTokens)
}

// TestRemovedDirectoryStaysRemoved: a store that has stored no page makes no directory when it
// closes.
func TestRemovedDirectoryStaysRemoved(t *testing.T) {
	s, o := openNew(t)
	require.NoError(t, os.RemoveAll(o.Local.Root))
	require.NoError(t, s.Close())
	require.NoDirExists(t, o.Local.Root)
}
