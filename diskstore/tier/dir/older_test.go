package dir

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestNamesAreShort: eCryptfs has names of 143 bytes.
func TestNamesAreShort(t *testing.T) {
	b := tier.Branch{Class: pagefile.ClassTail, Tokens: pagefile.MaxTokens}
	require.LessOrEqual(t, len(branchName(b)), 143)
	require.LessOrEqual(t, len(filepath.Base(relPath(tiertest.Tail(1)))), 143)
}

// TestFilesInThePlaceOfBranches: what no store made keeps no branch from being listed, and stays.
func TestFilesInThePlaceOfBranches(t *testing.T) {
	for _, place := range []string{prefixesDir, filepath.Join(prefixesDir, "02")} {
		tr := New(nil, t.TempDir(), Options{Create: true})
		file := filepath.Join(tr.base, tiertest.Fingerprint.String(), place)
		require.NoError(t, tr.Claim(ctx))
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		found, err := tr.Branches(ctx, tiertest.Fingerprint, []byte{2})
		require.NoError(t, err)
		require.Empty(t, found)
		require.FileExists(t, file)
		require.NoError(t, tr.Close())
	}
}

// TestFilesThatCannotBeRemovedAreBounded: a share refuses removals, for a while. The files that
// stay behind are at most maxLeft, and none of them counts once it is removed.
func TestFilesThatCannotBeRemovedAreBounded(t *testing.T) {
	ctx := context.Background()
	inj := vfs.Inject(storetest.QuickFS)
	tr := New(inj, storetest.PrivateDir(t), Options{Shared: true})
	defer func() { require.NoError(t, tr.Close()) }()
	require.NoError(t, tr.Claim(ctx))
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRemove, vfs.OpRename}, Path: regexp.MustCompile(`-\d+\.tmp$`), Err: syscall.EACCES})
	refused := 0
	for n := range maxLeft + 3 {
		up, err := tr.Create(ctx, pagefile.Name{Key: pagefile.Key{byte(n), byte(n >> 8)}})
		if err != nil {
			require.True(t, vfs.IsRefused(err), "%v", err)
			refused++
			continue
		}
		require.NoError(t, up.Write(ctx, []byte("page")))
		_, err = up.Commit(ctx, time.Now())
		require.Error(t, err)
	}
	require.Equal(t, 3, refused)
	require.EqualValues(t, maxLeft*pagefile.PageAlign, tr.Left())
	inj.Reset()
	up, err := tr.Create(ctx, pagefile.Name{Key: pagefile.Key{1}})
	require.NoError(t, err)
	up.Abort()
	require.Zero(t, tr.Left())
}

// sillyName is the name that an NFS client gives to a file that was removed while open.
const sillyName = ".nfs00000000000a1b2c0000001f"

// TestSillyRenames: a client that dies leaves the files behind that it had open when they were removed.
// They are no pages, a count removes them after an hour, and a walk takes them for temporary files.
func TestSillyRenames(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	tr := New(vfs.OS, root, Options{Create: true, Shared: true})
	defer func() { require.NoError(t, tr.Close()) }()
	tiertest.Upload(t, tr, tiertest.Page(1), []byte("page"), time.Now())
	tiertest.Upload(t, tr, tiertest.Tail(2), []byte("tail"), time.Now())
	tmp := filepath.Join(tr.Temp.dir, sillyName)
	swept := []string{tmp}
	for _, name := range []pagefile.Name{tiertest.Page(1), tiertest.Tail(2)} {
		swept = append(swept, filepath.Join(filepath.Dir(tr.Path(name)), sillyName))
	}
	fingerprint := filepath.Join(tr.base, tiertest.Fingerprint.String())
	all := append([]string{
		filepath.Join(tr.base, sillyName), filepath.Join(fingerprint, sillyName), filepath.Join(fingerprint, tailsDir, sillyName),
	}, swept...)
	for _, path := range all {
		require.NoError(t, os.WriteFile(path, []byte("gone"), 0o600))
	}

	found := make(map[string]bool)
	require.NoError(t, tr.Walk(ctx, func(e Entry) error {
		require.NotEqual(t, EntryForeign, e.Kind, e.Path)
		if filepath.Base(e.Path) == sillyName {
			require.Equal(t, EntryTemp, e.Kind)
			found[e.Path] = true
		}
		return nil
	}))
	require.Len(t, found, len(all))

	count := func() {
		_, err := tr.Aside(ctx)
		require.NoError(t, err)
		for _, name := range []pagefile.Name{tiertest.Page(1), tiertest.Tail(2)} {
			infos, err := tr.ListShard(ctx, tier.ShardOf(name))
			require.NoError(t, err)
			require.Len(t, infos, 1)
		}
	}
	count()
	for _, path := range swept {
		require.FileExists(t, path, "its client may live")
		old := time.Now().Add(-2 * OrphanAge)
		require.NoError(t, os.Chtimes(path, old, old))
	}
	count()
	for _, path := range swept {
		require.NoFileExists(t, path)
	}
}

func TestIsSilly(t *testing.T) {
	for base, want := range map[string]bool{
		sillyName: true, ".nfs.0a1b2c3d.0014": true, ".nfs": false, ".nfsroot": false, "nfs00": false, ".nfs-00.tmp": false,
	} {
		require.Equal(t, want, isSilly(base), base)
	}
}
