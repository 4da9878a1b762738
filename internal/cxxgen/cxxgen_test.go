package cxxgen

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGenerateReplacesStaleFiles(t *testing.T) {
	for name, c := range map[string]struct {
		library Library
		dir     string // of the package, in the library's root
		include string
	}{
		"package in the root":   {Library{By: "test", Root: ".", Parts: []string{"pager"}}, ".", "src/pager/a.cpp"},
		"package below":         {Library{By: "test", Root: "..", Parts: []string{"pager"}}, "go", "../src/pager/a.cpp"},
		"all parts, below them": {Library{By: "test", Root: ".."}, "go", "../src/pager/a.cpp"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write := func(name, text string) {
				path := filepath.Join(root, name)
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
				require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			}
			dir := filepath.Join(root, c.dir)
			write("src/pager/a.cpp", "int a;\n")
			if c.library.Parts != nil {
				write("src/cuda/kernel.cpp", "not compiled by cgo\n")
			}
			write("include/h.h", "1\n")
			write(filepath.Join(c.dir, "cxx_pager_gone_linux.cpp"), "left over\n")
			require.NoError(t, c.library.Generate(dir))
			names, err := filepath.Glob(filepath.Join(dir, "cxx_*"))
			require.NoError(t, err)
			require.Equal(t, []string{filepath.Join(dir, "cxx_pager_a_linux.cpp")}, names)
			before, err := os.ReadFile(names[0])
			require.NoError(t, err)
			require.Contains(t, string(before), "#include \""+c.include+"\"\n")

			write("include/h.h", "2\n")
			require.NoError(t, c.library.Generate(dir))
			after, err := os.ReadFile(names[0])
			require.NoError(t, err)
			require.NotEqual(t, before, after, "a header changed")
		})
	}
}

// The generated files are in the repository, for users who only build. Each file names a
// digest of the library: without the digest, Go would not compile a changed library again.
func TestGeneratedFilesAreFresh(t *testing.T) {
	for folder, library := range Of {
		dir := filepath.Join("..", "..", filepath.FromSlash(folder))
		want, err := library.Files(dir)
		require.NoError(t, err)
		require.NotEmpty(t, want)
		have, err := filepath.Glob(filepath.Join(dir, "cxx_*_linux.cpp"))
		require.NoError(t, err)
		require.Len(t, have, len(want), "run make generate")
		for name, text := range want {
			got, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err, "run make generate")
			require.Equal(t, text, string(got), "run make generate")
		}
	}
}
