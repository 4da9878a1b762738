package diskstore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
)

// vectorsFiles returns the files of vectors below a root.
func vectorsFiles(t *testing.T, root string) []string { return filesIn(t, root, ".kvv") }

// openVectors stores two pages and a tail, and keeps vectors beside each.
func openVectors(t *testing.T, edit ...func(*Options)) (*Store, *Root, Options, []tier.Info) {
	t.Helper()
	s, o := openNew(t, edit...)
	putChain(t, s, prompt(1, 2*testTokens+3))
	require.NoError(t, s.Flush(ctx))
	root, err := OpenRoot(ctx, RootOptions{Local: o.Local, Remote: o.Remote, FS: o.FS})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	infos := listAll(t, s.local)
	require.Len(t, infos, 3)
	for _, info := range infos {
		require.NoError(t, root.PutVectors(ctx, info.Name, []byte("vectors of "+info.Key.String())))
	}
	require.Len(t, vectorsFiles(t, o.Local.Root), 3)
	return s, root, o, infos
}

func TestVectorsAreReadAndReplaced(t *testing.T) {
	_, root, o, infos := openVectors(t)
	local, _ := root.Dirs()
	for _, info := range infos {
		content, err := local.Vectors(ctx, info.Name)
		require.NoError(t, err)
		require.Equal(t, "vectors of "+info.Key.String(), string(content))
	}
	for _, path := range vectorsFiles(t, o.Local.Root) {
		fi, err := os.Stat(path)
		require.NoError(t, err)
		require.Zero(t, fi.Mode().Perm()&0o077, "other users may not read them")
	}
	name := infos[0].Name
	require.NoError(t, root.PutVectors(ctx, name, []byte("others")))
	content, err := local.Vectors(ctx, name)
	require.NoError(t, err)
	require.Equal(t, "others", string(content))

	// what no store made in their place is replaced, and is never read
	path := strings.TrimSuffix(filePath(o.Local.Root, name), dir.PageExt) + ".kvv"
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Mkdir(path, 0o700))
	content, err = local.Vectors(ctx, name)
	require.NoError(t, err)
	require.Nil(t, content)
	require.NoError(t, root.PutVectors(ctx, name, []byte("again")))
	require.NoError(t, os.Truncate(path, 1<<40))
	content, err = local.Vectors(ctx, name)
	require.NoError(t, err)
	require.Nil(t, content, "no more is read than vectors may have")
}

// TestVectorsGoWithTheirPage: by every way in which a page leaves its place.
func TestVectorsGoWithTheirPage(t *testing.T) {
	for name, remove := range map[string]func(*testing.T, *Store, *Root, tier.Info){
		"evicted": func(t *testing.T, s *Store, _ *Root, info tier.Info) { evictPage(t, s, info) },
		"moved down": func(t *testing.T, s *Store, _ *Root, info tier.Info) {
			require.NoError(t, s.demote(ctx, info))
			evictPage(t, s, info)
		},
		"quarantined": func(t *testing.T, s *Store, _ *Root, info tier.Info) {
			moved, err := s.local.files.Quarantine(ctx, info, "damaged")
			require.NoError(t, err)
			require.True(t, moved)
		},
		"by hand": func(t *testing.T, s *Store, _ *Root, info tier.Info) {
			require.NoError(t, os.Remove(filePath(s.opt.Local.Root, info.Name)))
			listAll(t, s.local)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, root, o, infos := openVectors(t, withRemote(t))
			for n, info := range infos {
				remove(t, s, root, info)
				require.Len(t, vectorsFiles(t, o.Local.Root), len(infos)-n-1)
			}
			require.Empty(t, vectorsFiles(t, o.Remote.Root))
		})
	}
	t.Run("removed", func(t *testing.T) {
		_, root, o, _ := openVectors(t)
		_, err := root.GC(ctx, GCOptions{Fingerprints: func(FingerprintUsage) bool { return true }})
		require.NoError(t, err)
		require.Empty(t, vectorsFiles(t, o.Local.Root))
		entries, err := os.ReadDir(filepath.Join(o.Local.Root, "v1"))
		require.NoError(t, err)
		for _, e := range entries {
			_, err := pagefile.ParseKey(e.Name())
			require.Error(t, err, "no folder of a fingerprint stays")
		}
	})
	t.Run("unused", func(t *testing.T) {
		_, root, o, _ := openVectors(t)
		age(t, o.Local.Root, time.Now().Add(-time.Hour))
		_, err := root.GC(ctx, GCOptions{OlderThan: time.Minute})
		require.NoError(t, err)
		require.Empty(t, vectorsFiles(t, o.Local.Root))
	})
}

// TestVectorsCount: in listings, in the ledger's figure and in what a removal frees.
func TestVectorsCount(t *testing.T) {
	s, root, o, infos := openVectors(t)
	of := func() (pages, vectors int64) {
		for _, path := range filesIn(t, o.Local.Root, dir.PageExt) {
			pages += physical(t, o, path)
		}
		for _, path := range vectorsFiles(t, o.Local.Root) {
			vectors += physical(t, o, path)
		}
		return pages, vectors
	}
	pages, vectors := of()
	require.Positive(t, vectors)
	usage, err := root.Usage(ctx)
	require.NoError(t, err)
	require.Equal(t, pages+vectors, usage.Local.Bytes)
	require.NoError(t, root.Close())
	require.NoError(t, s.local.book.Refresh(ctx))
	figure, _ := s.local.book.Figure()
	require.GreaterOrEqual(t, figure, pages+vectors)

	count(t, s.local)
	figure, known := s.local.book.Figure()
	require.True(t, known)
	require.Equal(t, pages+vectors, figure)
	dropPage(t, s.local, infos[0])
	requireExact(t, s)
	pages, vectors = of()
	require.Equal(t, pages+vectors, s.Stats().Local.Bytes)
}

func physical(t *testing.T, o Options, path string) int64 {
	t.Helper()
	fi, err := o.FS.Lstat(path)
	require.NoError(t, err)
	return o.FS.PhysicalBytes(fi)
}

func TestVectorsNeedAPageAndRoom(t *testing.T) {
	s, root, o, infos := openVectors(t)
	evictPage(t, s, infos[0])
	require.ErrorIs(t, root.PutVectors(ctx, infos[0].Name, []byte("late")), tier.ErrNotFound)
	require.Len(t, vectorsFiles(t, o.Local.Root), 2)
	require.NoError(t, root.Close())

	o.Local.BudgetBytes = physicalPage(t)
	full, err := OpenRoot(ctx, RootOptions{Local: o.Local, FS: o.FS})
	require.NoError(t, err)
	defer full.Close()
	require.ErrorIs(t, full.PutVectors(ctx, infos[1].Name, []byte("more")), tier.ErrNoSpace)
	require.Len(t, listAll(t, s.local), 2, "no page makes room for vectors")
}
