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
	want, err := library.Files("..")
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
