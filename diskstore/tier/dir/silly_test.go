package dir

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// sillyName is the name that an NFS client gives to a file that was removed while open.
const sillyName = ".nfs00000000000a1b2c0000001f"

// TestSillyRenames: a client that dies leaves the files behind that it had open when they were
// removed. They are no pages, a count removes them after an hour, and a walk takes them for
// temporary files.
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
	w := &Walker{Ctx: ctx, T: tr, Visit: func(e Entry) error {
		require.NotEqual(t, EntryForeign, e.Kind, e.Path)
		if filepath.Base(e.Path) == sillyName {
			require.Equal(t, EntryTemp, e.Kind)
			found[e.Path] = true
		}
		return nil
	}}
	require.NoError(t, w.Walk())
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
