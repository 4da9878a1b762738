//go:build unix

package install

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestFileThatWasExchanged: root works in a folder of another user, who exchanges a file between
// root's look and root's read. root reads no other file, and waits for no pipe.
func TestFileThatWasExchanged(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "shadow")
	require.NoError(t, os.WriteFile(secret, []byte("root:secret"), 0o600))
	for name, exchange := range map[string]func(path string) error{
		"a link":       func(path string) error { return os.Symlink(secret, path) },
		"another name": func(path string) error { return os.Link(secret, path) },
		"a pipe":       func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a file":       func(path string) error { return os.WriteFile(path, []byte("another"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path, to := filepath.Join(dir, serverName), filepath.Join(dir, RealName)
			require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755))
			info, err := os.Lstat(path)
			require.NoError(t, err)
			require.NoError(t, os.Rename(path, path+".old"))
			require.NoError(t, exchange(path))

			require.ErrorContains(t, copyOf(path, info, to), "was replaced while it was looked at")
			require.NoFileExists(t, to)
			_, err = digestOf(path, info)
			require.ErrorContains(t, err, "was replaced while it was looked at")
		})
	}
}

// TestCopyOfKeeps: the copy has the content, the mode and the owner.
func TestCopyOfKeeps(t *testing.T) {
	dir := t.TempDir()
	path, to := filepath.Join(dir, serverName), filepath.Join(dir, RealName)
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755))
	if os.Getuid() == 0 {
		require.NoError(t, os.Chown(path, 12345, 12345))
	}
	info, err := os.Lstat(path)
	require.NoError(t, err)
	require.NoError(t, copyOf(path, info, to))
	copied, err := os.Lstat(to)
	require.NoError(t, err)
	content, err := os.ReadFile(to)
	require.NoError(t, err)
	require.Equal(t, "#!/bin/sh\n", string(content))
	require.Equal(t, info.Mode(), copied.Mode())
	was, _ := vfs.OS.Owner(info)
	is, _ := vfs.OS.Owner(copied)
	require.Equal(t, was, is)
}
