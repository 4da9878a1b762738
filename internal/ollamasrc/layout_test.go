package ollamasrc

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFindRoot(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	// A module inside kvtier's, such as the object-store tiers, is not the root.
	inner := filepath.Join(root, "a", "b")
	require.NoError(t, os.MkdirAll(inner, 0o755))
	write(t, filepath.Join(root, "go.mod"), "module github.com/kvtier/kvtier\n")
	write(t, filepath.Join(root, "a", "go.mod"), "module github.com/kvtier/kvtier/a\n")
	t.Chdir(inner)
	got, err := FindRoot()
	require.NoError(t, err)
	require.Equal(t, root, got)
}

func TestNewLayoutRefusesTheCheckout(t *testing.T) {
	root := filepath.FromSlash("/home/kvtier")
	for _, dir := range []string{"/home/kvtier", "/home", "/"} {
		_, err := NewLayout(root, filepath.FromSlash(dir))
		require.Error(t, err, dir)
	}
	for _, dir := range []string{"/home/kvtier/build/ollama", "/home/kvtier2", "/tmp/x"} {
		_, err := NewLayout(root, filepath.FromSlash(dir))
		require.NoError(t, err, dir)
	}
}

func TestLib(t *testing.T) {
	lay := Layout{Root: "/", Dir: t.TempDir()}
	libs, err := lay.Lib()
	require.NoError(t, err)
	require.Empty(t, libs)
	for _, name := range []string{"libggml-base.so.0", "libggml-cpu-haswell.so", "cuda_v12/libggml-cuda.so", "README"} {
		write(t, filepath.Join(lay.Libraries(), name), "")
	}
	libs, err = lay.Lib()
	require.NoError(t, err)
	require.Equal(t, []string{"cuda_v12/libggml-cuda.so", "libggml-base.so.0", "libggml-cpu-haswell.so"}, libs)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}
