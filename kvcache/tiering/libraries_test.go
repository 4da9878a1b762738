package tiering

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/kvtier/kvtier/internal/digests"
	"github.com/ollama/ollama/ml"
	"github.com/stretchr/testify/require"
)

// lay makes empty files below a directory.
func lay(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		path := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(name), 0o600))
	}
}

// libraryTree lays out lib/ollama as Ollama's packages do.
func libraryTree(t *testing.T) (dir string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	dir = filepath.Join(dir, "lib", "ollama")
	lay(t, dir, "ggml-base.dll", "ggml-cpu-haswell.dll", "readme.txt",
		"cuda_v12/ggml-cuda.dll", "cuda_v12/cublas64_12.dll", "cuda_v13/ggml-cuda.dll", "vulkan/ggml-vulkan.dll")
	before := ml.LibOllamaPath
	t.Cleanup(func() { ml.LibOllamaPath = before })
	ml.LibOllamaPath = dir
	return dir
}

func relative(t *testing.T, dir string, paths []string) []string {
	t.Helper()
	var names []string
	for _, path := range paths {
		name, err := filepath.Rel(dir, path)
		require.NoError(t, err)
		names = append(names, filepath.ToSlash(name))
	}
	return names
}

// Where the system does not list mapped libraries, libraries for a GPU count like those for the CPU.
func TestLibrariesInSubfoldersCount(t *testing.T) {
	dir := libraryTree(t)
	listed := func(path string) []string {
		t.Setenv("OLLAMA_LIBRARY_PATH", path)
		dirs, err := libraryDirs()
		require.NoError(t, err)
		paths, err := digests.LibrariesIn(dirs)
		require.NoError(t, err)
		return relative(t, dir, paths)
	}
	require.Equal(t, []string{
		"cuda_v12/cublas64_12.dll", "cuda_v12/ggml-cuda.dll", "cuda_v13/ggml-cuda.dll",
		"ggml-base.dll", "ggml-cpu-haswell.dll", "vulkan/ggml-vulkan.dll",
	}, listed(""), "all that could be loaded")
	require.Equal(t, []string{"cuda_v12/cublas64_12.dll", "cuda_v12/ggml-cuda.dll", "ggml-base.dll", "ggml-cpu-haswell.dll"},
		listed(dir+string(filepath.ListSeparator)+filepath.Join(dir, "cuda_v12")), "the libraries that the server names")
	require.Equal(t, []string{"ggml-base.dll", "ggml-cpu-haswell.dll"},
		listed(dir+string(filepath.ListSeparator)+filepath.Join(dir, "none")+string(filepath.ListSeparator)+dir))
}

// The engine's digest follows the content of libraries, not their paths or names.
func TestEngineDigestFollowsLibraries(t *testing.T) {
	if runtime.GOOS == "linux" {
		own, err := libraries()
		require.NoError(t, err)
		require.Empty(t, own, "this test maps no library that computes")
	}
	dir := libraryTree(t)
	t.Setenv("OLLAMA_LIBRARY_PATH", "")
	digests := func() []string {
		dirs, err := libraryDirs()
		require.NoError(t, err)
		paths, err := digests.LibrariesIn(dirs)
		require.NoError(t, err)
		all, err := digests.Open("").All(paths)
		require.NoError(t, err)
		return all
	}
	before := digests()
	require.Equal(t, before, digests())
	lay(t, dir, "cuda_v12/another.dll")
	added := digests()
	require.NotEqual(t, before, added)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cuda_v12", "ggml-cuda.dll"), []byte("another build"), 0o600))
	require.NotEqual(t, added, digests())
}
