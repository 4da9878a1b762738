package launch

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEachNameIsOneOption: no flag and no variable stands for two options.
func TestEachNameIsOneOption(t *testing.T) {
	seen := make(map[string]bool)
	for _, g := range Groups {
		require.NotEmpty(t, g.Why)
		for _, o := range g.Options {
			require.True(t, len(o.Flags) > 0 || o.Env != "")
			for _, name := range append(append([]string{o.Env, o.offEnv()}, o.Flags...), o.Off...) {
				require.False(t, name != "" && seen[name], name)
				seen[name] = true
			}
		}
	}
}

// TestOptionsThatChangeNoRow: Ollama chooses some of them by the memory that is free.
func TestOptionsThatChangeNoRow(t *testing.T) {
	for _, line := range []string{
		"--load-mode none", "-lm dio", "--no-mmproj-offload", "-mmdev none", "--no-mmap", "--ctx-checkpoints 4", "-nocb", "--no_webui",
		"--temp 0.2 --top-k 3", "-e", "--no-perf", "--chat-template-kwargs {}", "--threads 4", "-C f", "--cors-origins *",
	} {
		c := command("-m x " + line)
		require.Empty(t, c.Numerics(), line)
		require.Empty(t, c.Split(), line)
		require.Empty(t, c.Unknown(), line)
	}
	require.Empty(t, command("-m x", "LLAMA_ARG_LOAD_MODE=none", "LLAMA_ARG_NO_MMPROJ_OFFLOAD=1", "LLAMA_ARG_TOP_K=3", "LLAMA_ARG_SLOT_SAVE_PATH=d").Numerics())
}

// TestOptionsThatMayChangeRows: with all their values, in every form.
func TestOptionsThatMayChangeRows(t *testing.T) {
	for _, line := range []string{
		"-fa on", "--flash_attn off", "-nr", "--no-repack", "-kvu", "-no-kvu", "--override-tensor exps=CPU", "-cmoe", "-b",
		"--control-vector-layer-range 1 9", "--mmproj f", "--numa isolate", "--cache-type-k",
	} {
		want := strings.Fields(line)
		if line == "-b" { // without its value, which llama-server refuses
			want = nil
		}
		require.Equal(t, want, command("--seed 4 "+line).Numerics(), line)
	}
	require.Equal(t, []string{"LLAMA_ARG_NO_REPACK="}, command("-m x", "LLAMA_ARG_NO_REPACK=").Numerics())
	c := command("-m x --threads 3", "LLAMA_ARG_NO_THREADS=1")
	require.Equal(t, []string{"LLAMA_ARG_NO_THREADS"}, c.Unknown(), "threads have no opposite")
}

// TestSplit: the options of devices are apart.
func TestSplit(t *testing.T) {
	c := command("-m x -ngl 16 --main-gpu 1 --split-mode none -fa on --fit off --no-kv-offload", "LLAMA_ARG_FIT_TARGET=512", "LLAMA_ARG_NO_KV_OFFLOAD=1")
	require.Equal(t, strings.Fields("-ngl 16 --main-gpu 1 --split-mode none --fit off --no-kv-offload LLAMA_ARG_FIT_TARGET=512 LLAMA_ARG_NO_KV_OFFLOAD=1"), c.Split())
	require.Equal(t, strings.Fields("-fa on"), c.Numerics())
}

// TestUnknownOptions count as ones that change rows, and are named.
func TestUnknownOptions(t *testing.T) {
	c := command("-m x --moe-cache-mib -1 --seed 3 -new --rope-scale 2 value", "LLAMA_ARG_NEW=1", "GGML_CUDA_X=1", "LLAMA_ARG_MODEL=y")
	require.Equal(t, strings.Fields("--moe-cache-mib -1 -new --rope-scale 2 value GGML_CUDA_X=1 LLAMA_ARG_NEW=1"), c.Numerics())
	require.Equal(t, strings.Fields("--moe-cache-mib -new GGML_CUDA_X LLAMA_ARG_NEW"), c.Unknown())
	require.Empty(t, command(ollama).Unknown())
}
