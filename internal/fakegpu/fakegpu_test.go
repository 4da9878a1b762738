package fakegpu

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// forTest builds the module into a folder laid out as Ollama's, and gives the folder of libraries.
func forTest(t *testing.T) (libraries string) {
	t.Helper()
	libraries = t.TempDir()
	err := Build(filepath.Join(libraries, "cuda_v13"))
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
	require.NoError(t, err)
	layout, err := built()
	require.NoError(t, err)
	names, err := layout.Lib()
	require.NoError(t, err)
	for _, name := range append(names, "libggml-base.so.0") {
		_ = os.Symlink(filepath.Join(layout.Libraries(), name), filepath.Join(libraries, name))
	}
	return libraries
}

// The module keeps a card's promises, seen through ggml's interface.
func TestModule(t *testing.T) {
	libraries := forTest(t)
	layout, err := built()
	require.NoError(t, err)
	check := filepath.Join(t.TempDir(), "check")
	args := []string{"-std=c++17", "-O1", "-g", "-D_GNU_SOURCE", "-Wall"}
	for _, dir := range []string{"include", "src"} {
		args = append(args, "-isystem", filepath.Join(layout.Src(), "ml", "backend", "ggml", "ggml", dir))
	}
	args = append(args, filepath.Join("tests", "check.cpp"), filepath.Join(libraries, "libggml-base.so.0"),
		"-Wl,-rpath,"+libraries, "-ldl", "-o", check)
	printed, err := exec.Command("c++", args...).CombinedOutput()
	require.NoError(t, err, string(printed))

	cmd := exec.Command(check, filepath.Join(libraries, "cuda_v13", Module))
	cmd.Env = append(os.Environ(), "FAKEGPU_MEMORY=67108864", "FAKEGPU_DIR="+t.TempDir(), "FAKEGPU_DELAY_US=50000", "FAKEGPU_DEVICES=1")
	printed, err = cmd.CombinedOutput()
	require.NoError(t, err, string(printed))
}

// A failure that is no lack of tools shows the compiler's words.
func TestBuildFails(t *testing.T) {
	layout, err := built()
	require.NoError(t, err)
	if _, err := os.Stat(layout.Libraries()); err != nil {
		t.Skip(err)
	}
	t.Setenv("CXX", "false")
	require.ErrorContains(t, Build(t.TempDir()), "compiling "+Module)
	t.Setenv("CXX", "no-such-compiler")
	require.ErrorIs(t, Build(t.TempDir()), ErrUnavailable)
}
