package diskstore

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

func TestRoots(t *testing.T) {
	folder := t.TempDir()
	mk := func(name string, mode os.FileMode) string {
		path := filepath.Join(folder, name)
		require.NoError(t, os.Mkdir(path, 0o700))
		require.NoError(t, os.Chmod(path, mode))
		return path
	}
	good := mk("good", 0o755)
	link := filepath.Join(folder, "link")
	require.NoError(t, os.Symlink(good, link))
	file := filepath.Join(folder, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	cases := map[string]error{
		good: nil, link: tier.ErrRootSymlink, link + "/": tier.ErrRootSymlink, file: tier.ErrRootNotDir,
		mk("group", 0o770): tier.ErrRootMode, mk("world", 0o702): tier.ErrRootMode, filepath.Join(folder, "none"): os.ErrNotExist,
	}
	if os.Geteuid() == 0 {
		foreign := mk("foreign", 0o700)
		require.NoError(t, os.Chown(foreign, 12345, -1))
		cases[foreign] = tier.ErrRootOwner
	}
	for path, want := range cases {
		require.ErrorIs(t, dir.CheckRoot(vfs.OS, path), want, path)
		if want == nil || want == os.ErrNotExist {
			continue
		}
		_, err := Open(ctx, testOptions(t, func(o *Options) { o.Local.Root = path }))
		require.ErrorIs(t, err, want)
		_, err = Open(ctx, testOptions(t, func(o *Options) { o.Remote.Root = path }))
		require.ErrorIs(t, err, want)
	}
}
