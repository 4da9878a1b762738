//go:build unix

package install

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
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
			path := filepath.Join(dir, serverName)
			require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755))
			info, err := os.Lstat(path)
			require.NoError(t, err)
			require.NoError(t, os.Rename(path, path+".old"))
			require.NoError(t, exchange(path))

			_, err = digestOf(path, info)
			require.ErrorContains(t, err, "was replaced while it was looked at")
		})
	}
}
