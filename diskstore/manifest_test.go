package diskstore

import (
	"encoding/binary"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

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
	r := gcWith(t, openRoot(t, o), GCOptions{Fingerprints: func(FingerprintUsage) bool { return true }})
	return r
}

// TestPagesAfterARemovalHaveAManifest: pages of a model that is loaded are removed, and the model
// stores pages again. Without a manifest nobody could tell which model these pages are of, and
// the next kvtier rm of the model would find nothing.
func TestPagesAfterARemovalHaveAManifest(t *testing.T) {
	for name, again := range map[string]func(t *testing.T, s *Store, p *pagefile.Page){
		"put": func(t *testing.T, s *Store, p *pagefile.Page) { require.NoError(t, s.Put(ctx, p)) },
		"promotion": func(t *testing.T, s *Store, p *pagefile.Page) {
			info := mustStat(t, s.guard, s.pages.Page(p.Key()))
			s.mover.Promote(ctx, s.guard, info, recency.Place{Parent: p.Parent})
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
			require.FileExists(t, filePath(o.Local.Root, pagefile.Name{Fingerprint: o.Fingerprint, Class: pagefile.ClassManifest}))
		})
	}
}

// TestOriginOfAModel: the local manifest keeps it as long as all stores agree, and no other one gets it.
func TestOriginOfAModel(t *testing.T) {
	o := testOptions(t)
	other := open(t, testOptions(t, withRemote(t), func(o *Options) { o.Fingerprint = testFingerprint(5) }))
	origin := func(in tier.Tier) string {
		m, err := tier.ReadManifest(ctx, in, o.Fingerprint)
		require.NoError(t, err)
		return m.Origin
	}
	for _, step := range []struct{ opens, has string }{{"", ""}, {"a", "a"}, {"", "a"}, {"a", "a"}, {"b", severalOrigins}, {"a", severalOrigins}} {
		o.Origin = step.opens
		s := open(t, o)
		require.Equal(t, step.has, origin(s.disk))
		require.NoError(t, other.manifests.below(ctx, s.disk, other.guard, o.Fingerprint, false))
		require.Empty(t, origin(other.guard))
		_, err := other.guard.Remove(ctx, tier.Info{Name: pagefile.Name{Fingerprint: o.Fingerprint, Class: pagefile.ClassManifest}})
		require.NoError(t, err)
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

// makeNewer gives all pages below a root a schema that this program does not read.
func makeNewer(t *testing.T, root string) {
	t.Helper()
	for _, path := range filesIn(t, root, dir.PageExt) {
		content := fileOf(t, path)
		le := binary.LittleEndian
		le.PutUint32(content[8:], pagefile.SchemaLossy+1)
		end := le.Uint32(content[132:]) - 4
		le.PutUint32(content[end:], pagefile.Checksum(content[:end]))
		require.NoError(t, os.WriteFile(path, content, 0o600))
	}
}

// TestPagesOfANewerProgramAreEvicted: a newer program that has been rolled back has filled the
// local tier. Its pages cannot move down, because this program cannot check them, and make room.
func TestPagesOfANewerProgramAreEvicted(t *testing.T) {
	const pages = 20
	o := testOptions(t, withRemote(t), withPages(t, pages))
	newer := o
	newer.Fingerprint = testFingerprint(2)
	s := open(t, newer)
	putPages(t, s, 0, pages-2)
	require.NoError(t, s.Flush(ctx))
	require.NoError(t, s.Close())
	makeNewer(t, o.Local.Root)
	age(t, o.Local.Root, time.Now().Add(-time.Hour))

	s = open(t, o)
	putPages(t, s, 100, 100+pages)
	require.NoError(t, s.Flush(ctx))
	require.NotZero(t, s.Stats().Evicted)
	require.LessOrEqual(t, occupied(t, o.Local.Root), o.Local.BudgetBytes)
}

// TestRemoteThatRefusesWrites: a remote tier that only this machine may not write, as with an
// export of root_squash, is read as before. One line names the directory and a remedy, and
// another one tells when a page is stored there again.
func TestRemoteThatRefusesWrites(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EACCES, syscall.EPERM, syscall.EROFS} {
		t.Run(errno.Error(), func(t *testing.T) {
			inj := vfs.Inject(quickFS)
			var log strings.Builder
			o := testOptions(t, withFS(inj), withRemote(t))
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
			s := open(t, o)
			inRemote(t, s, 2)
			inj.Add(vfs.Rule{
				Path: regexp.MustCompile("^" + regexp.QuoteMeta(o.Remote.Root)),
				Ops:  []vfs.Op{vfs.OpCreate, vfs.OpMkdir, vfs.OpLock, vfs.OpRename, vfs.OpRemove, vfs.OpChtimes}, Err: errno,
			})
			page := mustStat(t, s.disk, s.pages.Page(putChain(t, s, prompt(9, testTokens))[0].Key()))
			for range 4 {
				require.ErrorIs(t, s.demote(ctx, page), errno)
				readChain(t, s, prompt(1, testTokens), testTokens)
			}
			require.False(t, s.Stats().Remote.Down, "it can be read")
			require.GreaterOrEqual(t, s.Stats().TierErrors, uint64(4))
			require.Equal(t, 1, strings.Count(log.String(), "refuses writes"), "%s", log.String())
			require.NotContains(t, log.String(), "not usable")
			_, line, _ := strings.Cut(log.String(), "refuses writes")
			require.Contains(t, line, o.Remote.Root)
			require.Contains(t, line, "remedy=")

			inj.Reset()
			require.NoError(t, s.demote(ctx, page))
			require.Equal(t, 1, strings.Count(log.String(), "may be written again"), "%s", log.String())
		})
	}
}
