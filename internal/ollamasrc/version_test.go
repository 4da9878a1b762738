package ollamasrc

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kvtier/kvtier/internal/version"
	"github.com/stretchr/testify/require"
)

// The texts of refusals are tested in cmd/patch-ollama, which prints them.
func TestCheckVersionRange(t *testing.T) {
	for _, v := range []string{"v0.16.0", "v0.16.1", "v0.17.7", "v0.20.0", "v0.24.0"} {
		require.NoError(t, CheckVersion(v), v)
	}
	for _, v := range []string{"", "v0.15.9", "v0.24.1", "v0.30.0", "v1.0.0", "v0.16.1-rc0", "v0.16.1+x", "v0.16", "0.16.1", "main"} {
		require.Error(t, CheckVersion(v), v)
	}
}

func TestModuleVersionsAreSupported(t *testing.T) {
	require.Contains(t, ModuleVersions(), DefaultVersion)
	for _, v := range ModuleVersions() {
		require.NoError(t, CheckVersion(v))
		require.Regexp(t, `^h1:[A-Za-z0-9+/]{43}=$`, moduleSums[v])
	}
}

// The Go command that builds kvtier verifies the default release by the same checksum.
func TestPinnedAsInGoSum(t *testing.T) {
	sums, err := os.ReadFile(filepath.Join("..", "..", "go.sum"))
	require.NoError(t, err)
	require.Contains(t, string(sums), ModulePath+" "+DefaultVersion+" "+moduleSums[DefaultVersion]+"\n")
}

// A module that is not the pinned one is refused.
func TestModuleIsPinned(t *testing.T) {
	pinned := moduleSums[DefaultVersion]
	defer func() { moduleSums[DefaultVersion] = pinned }()
	moduleSums[DefaultVersion] = "h1:AAAA="
	_, err := openModule(t.Context(), Layout{Dir: t.TempDir()}, DefaultVersion)
	require.ErrorContains(t, err, "has checksum "+pinned+", but h1:AAAA= is pinned; do not use it")
}

func TestBuildVersion(t *testing.T) {
	require.Equal(t, "0.16.1+kvtier."+version.Unreleased, BuildVersion(t.Context(), t.TempDir(), "v0.16.1"))
	require.Equal(t, "0.16.1+kvtier."+version.Unreleased+".without-a.without-b", BuildVersion(t.Context(), t.TempDir(), "v0.16.1", "a", "b"))
}
