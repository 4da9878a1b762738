package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/testmodel"
)

// TestRun: flags give the model of a Shape, and its Modelfile.
func TestRun(t *testing.T) {
	for args, shape := range map[string]testmodel.Shape{
		"-arch llama": {Arch: "llama", Seed: 1},
		"-arch deepseek2 -layers 3 -embed 192 -heads 6 -kv-heads 1 -head-dim 32 -ffn 64 -llama-cpp": {
			Arch: "deepseek2", Layers: 3, Embed: 192, Heads: 6, KVHeads: 1, HeadDim: 32, FFN: 64, LlamaCpp: true, Seed: 1,
		},
	} {
		dir := t.TempDir()
		gguf, again, modelfile := filepath.Join(dir, "m.gguf"), filepath.Join(dir, "again.gguf"), filepath.Join(dir, "Modelfile")
		require.NoError(t, run(append(strings.Fields(args), "-o", gguf, "-modelfile", modelfile), io.Discard, io.Discard))
		require.NoError(t, testmodel.Write(again, shape))
		require.Equal(t, read(t, again), read(t, gguf), args)
		require.Equal(t, testmodel.Modelfile(gguf), string(read(t, modelfile)))
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return text
}

// TestArchitectureAlone: -arch alone gives a small model of each architecture. Package e2e
// shows that Ollama runs these models.
func TestArchitectureAlone(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, run([]string{"-arch", recallArch, "-questions", "q.tsv", "-tokens", "1000"}, io.Discard, io.Discard))
	require.Equal(t, 3, strings.Count(string(read(t, "q.tsv")), "\"raw\":true"))
	for _, arch := range append(testmodel.Architectures(), recallArch) {
		require.NoError(t, run([]string{"-arch", arch}, io.Discard, io.Discard))
		info, err := os.Stat(arch + ".gguf")
		require.NoError(t, err)
		require.Less(t, info.Size(), int64(60e6))
	}
}
