//go:build unix

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
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
