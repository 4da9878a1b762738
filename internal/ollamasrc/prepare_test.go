package ollamasrc

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFindHeaders(t *testing.T) {
	root, other := t.TempDir(), t.TempDir()
	_, err := findHeaders([]string{root, other})
	require.ErrorContains(t, err, "lacks the C headers of nlohmann/json and stb_image")
	for _, how := range []string{
		"apt install nlohmann-json3-dev libstb-dev", "dnf install json-devel stb_image-devel",
		"pacman -S nlohmann-json stb", "brew install nlohmann-json", "--src DIR",
	} {
		require.ErrorContains(t, err, how)
	}
	write(t, filepath.Join(other, "nlohmann", "json.hpp"), "")
	_, err = findHeaders([]string{root, other})
	require.ErrorContains(t, err, "lacks the C headers of stb_image and")
	write(t, filepath.Join(root, "stb", "stb_image.h"), "")
	found, err := findHeaders([]string{root, other})
	require.NoError(t, err)
	require.Equal(t, []string{other, root}, found)
}

func TestInstallHeaders(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "nlohmann", "json.hpp"), "// json")
	write(t, filepath.Join(root, "nlohmann", "detail", "value_t.hpp"), "// value")
	write(t, filepath.Join(root, "stb", "stb_image.h"), "// image")
	t.Setenv("CPATH", root)
	lay := Layout{Dir: t.TempDir()}
	write(t, filepath.Join(lay.Include(), "nlohmann", "gone.hpp"), "// of an older release")
	require.NoError(t, installHeaders(lay))

	var names []string
	require.NoError(t, filepath.WalkDir(lay.Include(), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(lay.Include(), path)
			names = append(names, filepath.ToSlash(rel))
		}
		return err
	}))
	require.Equal(t, []string{"miniaudio/miniaudio.h", "nlohmann/detail/value_t.hpp", "nlohmann/json.hpp", "stb/stb_image.h"}, names)
}

// The stub must compile and refuse when used as mtmd-helper.cpp uses miniaudio.
func TestMiniaudioStub(t *testing.T) {
	compiler, err := exec.LookPath("c++")
	if err != nil {
		t.Skip("no c++ on PATH")
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "use.cpp"), `
#define MINIAUDIO_IMPLEMENTATION
#define MA_NO_ENCODING
#define MA_API static
#include "miniaudio.h"
int main() {
    ma_decoder_config config = ma_decoder_config_init(ma_format_f32, 1, 16000);
    ma_decoder decoder;
    ma_uint64 count = 7, read = 7;
    ma_result result = ma_decoder_init_memory("RIFF", 4, &config, &decoder);
    if (result == MA_SUCCESS) return 1;
    if (ma_decoder_get_length_in_pcm_frames(&decoder, &count) == MA_SUCCESS || count != 0) return 2;
    if (ma_decoder_read_pcm_frames(&decoder, nullptr, count, &read) == MA_SUCCESS || read != 0) return 3;
    ma_decoder_uninit(&decoder);
    return 0;
}
`)
	program := filepath.Join(dir, "use")
	out, err := exec.Command(compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-Istub", "-o", program, filepath.Join(dir, "use.cpp")).CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, exec.Command(program).Run())
}

func TestWriteWorkspace(t *testing.T) {
	root := t.TempDir()
	lay := Layout{Root: root, Dir: filepath.Join(root, "build", "ollama")}
	for _, tc := range []struct{ ollama, kvtier, want string }{
		{"1.24.1", "1.24.1", "1.24.1"},
		{"1.26.0", "1.24.1", "1.26.0"},
		{"1.24.1", "1.24.10", "1.24.10"},
		{"1.24.0", "1.24rc1", "1.24.0"},
	} {
		write(t, filepath.Join(lay.Src(), "go.mod"), "module github.com/ollama/ollama\n\ngo "+tc.ollama+"\n")
		write(t, filepath.Join(root, "go.mod"), "module github.com/kvtier/kvtier\n\ngo "+tc.kvtier+"\n")
		require.NoError(t, writeWorkspace(lay))
		data, err := os.ReadFile(lay.GoWork())
		require.NoError(t, err)
		require.Equal(t, "go "+tc.want+"\n\nuse (\n\t./src\n\t../..\n)\n", string(data))
	}
}
