package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The generated files are in the repository, for users who only build. Each file names a
// digest of the library: without the digest, Go would not compile a changed library again.
func TestGeneratedFilesAreFresh(t *testing.T) {
	want, err := Files("..")
	require.NoError(t, err)
	require.NotEmpty(t, want)
	have, err := filepath.Glob("../cxx_*_linux.cpp")
	require.NoError(t, err)
	require.Len(t, have, len(want), "run make generate")
	for name, text := range want {
		got, err := os.ReadFile(filepath.Join("..", name))
		require.NoError(t, err, "run make generate")
		require.Equal(t, text, string(got), "run make generate")
	}
}

func TestGenerateReplacesStaleFiles(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write("src/pool/a.cpp", "int a;\n")
	write("include/h.h", "1\n")
	write("cxx_pool_gone_linux.cpp", "left over\n")
	require.NoError(t, generate(root))
	names, err := filepath.Glob(filepath.Join(root, "cxx_*"))
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(root, "cxx_pool_a_linux.cpp")}, names)
	before, err := os.ReadFile(names[0])
	require.NoError(t, err)

	write("include/h.h", "2\n")
	require.NoError(t, generate(root))
	after, err := os.ReadFile(names[0])
	require.NoError(t, err)
	require.NotEqual(t, before, after, "a header changed")
}
