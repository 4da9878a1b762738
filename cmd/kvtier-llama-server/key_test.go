//go:build unix

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/llamatier/launch"
)

// TestAKey: the first one, as llama-server reads them. A pipe is left to llama-server.
func TestAKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	key := func(args ...string) string { return aKey(launch.Command{Args: args}) }
	require.Empty(t, key("-m", "x"))
	require.Equal(t, "a", key("--api-key", "a,b"))
	require.Empty(t, key("--api-key-file", path))
	require.NoError(t, os.WriteFile(path, []byte("# keys\n\nfirst\nsecond\n"), 0o600))
	require.Equal(t, "first", key("--api-key-file", path))
	require.Equal(t, "a", key("--api-key-file", path, "--api-key", "a"))
	require.NoError(t, os.Remove(path))
	require.NoError(t, unix.Mkfifo(path, 0o600))
	require.Empty(t, key("--api-key-file", path))
}
