//go:build unix

package vfs

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOSModesIgnoreTheUmask(t *testing.T) {
	for _, umask := range []int{0, 0o277} {
		dir := t.TempDir()
		old := syscall.Umask(umask)
		err := OS.Mkdir(filepath.Join(dir, "d"))
		f, ferr := OS.Create(filepath.Join(dir, "f"))
		lock, lerr := OS.Lock(filepath.Join(dir, "l"))
		syscall.Umask(old)
		require.NoError(t, err)
		require.NoError(t, ferr)
		require.NoError(t, f.Close())
		require.NoError(t, lerr)
		require.NoError(t, lock.Close())
		for name, want := range map[string]os.FileMode{"d": 0o700, "f": 0o600, "l": 0o600} {
			info, err := os.Lstat(filepath.Join(dir, name))
			require.NoError(t, err)
			require.Equal(t, want, info.Mode().Perm())
		}
	}
}

func TestOSOpenRefusesWhatIsNotAFile(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	write(t, OS, target, "secret")
	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	require.NoError(t, os.Symlink(target, link))
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	for _, path := range []string{dir, link, fifo} { // and does not wait for a writer
		_, err := OS.Open(path)
		require.ErrorIs(t, err, ErrNotRegular, path)
	}
	_, err := OS.Create(link)
	require.ErrorIs(t, err, fs.ErrExist)
	_, err = OS.Lock(link)
	require.Error(t, err)

	dirLink := filepath.Join(dir, "dirlink")
	require.NoError(t, os.Symlink(t.TempDir(), dirLink))
	_, err = OS.ReadDir(dirLink)
	require.Error(t, err)
	require.Error(t, OS.SyncDir(dirLink))

	when := time.Unix(1_600_000_000, 0)
	require.NoError(t, OS.Chtimes(link, when, when))
	info, err := os.Lstat(target)
	require.NoError(t, err)
	require.False(t, when.Equal(info.ModTime()), "a link's target is left alone")
}

func TestErrorKinds(t *testing.T) {
	wrapped := &fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}
	require.True(t, IsNoSpace(wrapped))
	require.True(t, IsNoSpace(syscall.EDQUOT))
	require.False(t, IsNoSpace(syscall.EIO))
	require.True(t, IsNoLocks(syscall.ENOLCK) && IsNoLocks(syscall.ENOTSUP))
	require.False(t, IsNoLocks(syscall.EACCES))
	require.True(t, IsReadOnly(syscall.EROFS))
	require.False(t, IsReadOnly(wrapped))
}
