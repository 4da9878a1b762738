package digests

import (
	"testing"

	"github.com/stretchr/testify/require"
)

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
7f01b000-7f01c000 r-xp 00000000 08:01 110 /usr/lib/x86_64-linux-gnu/libllama.so.0.0.10488
7f01b000-7f01c000 r--p 00000000 08:01 109 /home/user/ggml-model.gguf
`
	dirs := []string{"/opt/my tools/lib/ollama", "/opt/my tools/lib/ollama/cuda_v12"}
	paths, err := Mapped(maps, dirs)
	require.NoError(t, err)
	require.Equal(t, []string{
		"/opt/my tools/lib/ollama/cuda_v12/libcublasLt.so.12.8.4.1",
		"/opt/my tools/lib/ollama/cuda_v12/libggml-cuda.so",
		"/opt/my tools/lib/ollama/cuda_v12/libhelper.so",
		"/opt/my tools/lib/ollama/libggml-base.so.0.0.0",
		"/usr/lib/x86_64-linux-gnu/libllama.so.0.0.10488",
		"/usr/local/cuda/lib64/libcublas.so.12",
	}, paths)
	_, err = Mapped("7f00a000-7f00b000 r-xp 0 08:01 1 /opt/lib/libggml-cpu.so (deleted)\n", nil)
	require.ErrorContains(t, err, "/opt/lib/libggml-cpu.so was replaced")
}
