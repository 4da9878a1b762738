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

func TestRun(t *testing.T) {
	dir := t.TempDir()
	gguf, modelfile := filepath.Join(dir, "m.gguf"), filepath.Join(dir, "Modelfile")
	require.NoError(t, run([]string{"-o", gguf, "-modelfile", modelfile, "-arch", "llama"}, io.Discard, io.Discard))
	again := filepath.Join(dir, "again.gguf")
	require.NoError(t, testmodel.Write(again, testmodel.Shape{Arch: "llama", Seed: 1}))
	first, err := os.ReadFile(gguf)
	require.NoError(t, err)
	second, err := os.ReadFile(again)
	require.NoError(t, err)
	require.Equal(t, first, second)

	written, err := os.ReadFile(modelfile)
	require.NoError(t, err)
	require.Equal(t, testmodel.Modelfile(gguf), string(written))
}

func TestSizes(t *testing.T) {
	dir := t.TempDir()
	args := strings.Fields("-arch deepseek2 -layers 3 -embed 192 -heads 6 -kv-heads 1 -head-dim 32 -ffn 64 -llama-cpp -o " + dir + "/m.gguf")
	require.NoError(t, run(args, io.Discard, io.Discard))
	shape := testmodel.Shape{Arch: "deepseek2", Layers: 3, Embed: 192, Heads: 6, KVHeads: 1, HeadDim: 32, FFN: 64, LlamaCpp: true, Seed: 1}
	require.NoError(t, testmodel.Write(filepath.Join(dir, "again.gguf"), shape))
	first, err := os.ReadFile(filepath.Join(dir, "m.gguf"))
	require.NoError(t, err)
	second, err := os.ReadFile(filepath.Join(dir, "again.gguf"))
	require.NoError(t, err)
	require.Equal(t, first, second)
}

// TestArchitectureAlone: -arch alone gives a small model of each architecture. Package e2e
// shows that Ollama runs these models.
func TestArchitectureAlone(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, arch := range append(testmodel.Architectures(), recallArch) {
		require.NoError(t, run([]string{"-arch", arch}, io.Discard, io.Discard))
		info, err := os.Stat(arch + ".gguf")
		require.NoError(t, err)
		require.Less(t, info.Size(), int64(60e6))
	}
}

func TestRunRefuses(t *testing.T) {
	t.Chdir(t.TempDir())
	for want, args := range map[string][]string{
		"tinyllama":                  {"-arch", "tinyllama"},
		"unexpected argument":        {"-o", "x", "stray"},
		"flag provided but not defi": {"-nonsense"},
	} {
		require.ErrorContains(t, run(args, io.Discard, io.Discard), want)
	}
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	require.Empty(t, entries)
}
