//go:build unix

package front

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/llamatier/launch"
)

// TestAnother: the real llama-server is beside this program, or where systemd mounts
// Ollama's folder. It is never this program.
func TestAnother(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(at("llama-server"), nil, 0o700))
	_, err := another(at("llama-server"), at("llama-server-real"), at("mounted"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "set KVTIER_LLAMA_SERVER to its path")

	require.NoError(t, os.Link(at("llama-server"), at("mounted")))
	_, err = another(at("llama-server"), at("llama-server-real"), at("mounted"))
	require.ErrorContains(t, err, "mounted is this program")

	require.NoError(t, os.Remove(at("mounted")))
	require.NoError(t, os.WriteFile(at("mounted"), nil, 0o700))
	path, err := another(at("llama-server"), at("llama-server-real"), at("mounted"))
	require.NoError(t, err)
	require.Equal(t, at("mounted"), path)

	require.NoError(t, os.WriteFile(at("llama-server-real"), nil, 0o700))
	path, err = another(at("llama-server"), at("llama-server-real"), at("mounted"))
	require.NoError(t, err)
	require.Equal(t, at("llama-server-real"), path)
}

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
