//go:build unix

package secretfile

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRead: a file that others may read or replace is refused, and so is what is no file of a few bytes. A pipe
// that nobody writes to holds nobody up.
func TestRead(t *testing.T) {
	const secret = "a secret"
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte(secret), 0o600))
	for mode, good := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o640: true, 0o644: false, 0o604: false, 0o602: false, 0o620: false, 0o660: false} {
		require.NoError(t, os.Chmod(path, mode))
		text, err := Read(path, len(secret))
		if good {
			require.NoError(t, err)
			require.Equal(t, secret, text)
			continue
		}
		require.ErrorContains(t, err, "chmod 600 "+path)
		require.NotContains(t, err.Error(), secret)
	}
	require.NoError(t, os.Chmod(path, 0o600))
	_, err := Read(path, len(secret)-1)
	require.ErrorContains(t, err, "more than")
	require.NotContains(t, err.Error(), secret)

	_, err = Read(path+"s", 9)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Read(filepath.Dir(path), 9)
	require.ErrorContains(t, err, "not a regular file")
	pipe := strings.TrimSuffix(path, "file") + "pipe"
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	_, err = Read(pipe, 9)
	require.ErrorContains(t, err, "not a regular file")
}
