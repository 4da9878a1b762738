package tiering

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

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

// Where the system does not list mapped libraries, libraries for a GPU count like those for
// the CPU.
func TestLibrariesInSubfoldersCount(t *testing.T) {
	dir := libraryTree(t)
	listed := func(path string) []string {
		t.Setenv("OLLAMA_LIBRARY_PATH", path)
		dirs, err := libraryDirs()
		require.NoError(t, err)
		paths, err := librariesIn(dirs)
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

func TestMappedLibrariesThatCompute(t *testing.T) {
	const maps = `5581a000-5581b000 r-xp 00000000 08:01 100 /opt/my tools/bin/ollama
7f00a000-7f00b000 r--p 00000000 08:01 101 /opt/my tools/lib/ollama/libggml-base.so.0.0.0
7f00b000-7f00c000 r-xp 00001000 08:01 101 /opt/my tools/lib/ollama/libggml-base.so.0.0.0
7f00d000-7f00e000 r-xp 00000000 08:01 102 /opt/my tools/lib/ollama/cuda_v12/libggml-cuda.so
7f00f000-7f010000 r-xp 00000000 08:01 103 /opt/my tools/lib/ollama/cuda_v12/libcublasLt.so.12.8.4.1
7f00f000-7f010000 r-xp 00000000 08:01 104 /opt/my tools/lib/ollama/cuda_v12/libhelper.so
7f011000-7f012000 r-xp 00000000 08:01 105 /usr/local/cuda/lib64/libcublas.so.12
7f013000-7f014000 r-xp 00000000 08:01 106 /usr/lib/x86_64-linux-gnu/libc.so.6
7f015000-7f016000 rw-p 00000000 00:00 0   [heap]
7f017000-7f018000 rw-s 00000000 00:05 107 /dev/zero (deleted)
7f019000-7f01a000 r-xp 00000000 08:01 108 /usr/lib/libfoo.so (deleted)
7f01b000-7f01c000 r--p 00000000 08:01 109 /home/user/ggml-model.gguf
`
	dirs := []string{"/opt/my tools/lib/ollama", "/opt/my tools/lib/ollama/cuda_v12"}
	paths, err := mappedLibraries(maps, dirs)
	require.NoError(t, err)
	require.Equal(t, []string{
		"/opt/my tools/lib/ollama/cuda_v12/libcublasLt.so.12.8.4.1",
		"/opt/my tools/lib/ollama/cuda_v12/libggml-cuda.so",
		"/opt/my tools/lib/ollama/cuda_v12/libhelper.so",
		"/opt/my tools/lib/ollama/libggml-base.so.0.0.0",
		"/usr/local/cuda/lib64/libcublas.so.12",
	}, paths)
	_, err = mappedLibraries("7f00a000-7f00b000 r-xp 0 08:01 1 /opt/lib/libggml-cpu.so (deleted)\n", nil)
	require.ErrorContains(t, err, "/opt/lib/libggml-cpu.so was replaced")
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
		paths, err := librariesIn(dirs)
		require.NoError(t, err)
		all, err := digestsOf(openDigests(""), paths)
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
