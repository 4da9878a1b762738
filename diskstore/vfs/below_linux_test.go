package vfs

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHold: everything in a held directory is reached by its path, which leads there no more.
func TestHold(t *testing.T) {
	above := t.TempDir()
	dir := filepath.Join(above, "closed", "root")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	outside, err := OS.Locking(dir)
	require.NoError(t, err)
	f, err := os.Open(dir)
	require.NoError(t, err)
	require.NoError(t, Hold(dir, f))
	t.Cleanup(func() {
		held.Store(nil)
		require.NoError(t, f.Close())
	})
	require.NoError(t, os.Rename(filepath.Join(above, "closed"), filepath.Join(above, "away")))
	require.NoDirExists(t, dir)

	for name, fsys := range map[string]FS{"os": OS, "below": Below(dir)} {
		path := func(elements ...string) string { return filepath.Join(append([]string{dir, name}, elements...)...) }
		require.NoError(t, fsys.Mkdir(path()))
		conformDirectories(t, fsys, path)
		conformPaths(t, fsys, path)
		info, err := fsys.Lstat(dir)
		require.NoError(t, err)
		require.True(t, info.IsDir())
		_, err = fsys.Lstat(path("none"))
		require.ErrorIs(t, err, fs.ErrNotExist)
		require.ErrorContains(t, err, path("none"))
		_, err = fsys.ReadDir(dir)
		require.NoError(t, err)
		_, err = fsys.Space(dir)
		require.NoError(t, err)
		_, err = fsys.IsRAM(dir)
		require.NoError(t, err)
		locking, err := fsys.Locking(dir)
		require.NoError(t, err)
		require.Equal(t, outside.Reach, locking.Reach)
		require.Equal(t, outside.Host, locking.Host)
		_, err = fsys.Lstat(dir + "s")
		require.ErrorIs(t, err, fs.ErrNotExist, "beside it")
	}
}

// onlyWalk makes Below work without openat2 until the result is called.
func onlyWalk() func() {
	before := noOpenat2.Swap(true)
	return func() { noOpenat2.Store(before) }
}
