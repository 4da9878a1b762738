package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/testmodel"
)

func TestRun(t *testing.T) {
	dir := t.TempDir()
	gguf, modelfile := filepath.Join(dir, "m.gguf"), filepath.Join(dir, "Modelfile")
	var stdout bytes.Buffer
	require.NoError(t, run([]string{
		"-o", gguf, "-modelfile", modelfile, "-arch", "llama", "-layers", "2", "-embed", "32",
		"-heads", "6", "-kv-heads", "3", "-head-dim", "16", "-vocab", "300", "-context", "99", "-seed", "5",
	}, &stdout, io.Discard))
	require.Contains(t, stdout.String(), "llama, 2 layers, embed 32, heads 6/3 × 16, ffn 96, vocab 300, seed 5\n")
	require.Contains(t, stdout.String(), "f16 K/V: 384 bytes per token\n")

	again := filepath.Join(dir, "again.gguf")
	require.NoError(t, testmodel.Write(again, testmodel.Shape{
		Arch: "llama", Layers: 2, Embed: 32, Heads: 6, KVHeads: 3, HeadDim: 16, Vocab: 300, Context: 99, Seed: 5,
	}))
	first, err := os.ReadFile(gguf)
	require.NoError(t, err)
	second, err := os.ReadFile(again)
	require.NoError(t, err)
	require.Equal(t, first, second, "flags reach the shape")

	written, err := os.ReadFile(modelfile)
	require.NoError(t, err)
	require.Equal(t, testmodel.Modelfile(gguf), string(written))
}

// TestArchitectureAlone: -arch alone gives a small model of each architecture. Package e2e
// shows that Ollama runs these models.
func TestArchitectureAlone(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, arch := range append(testmodel.Architectures(), recallArch) {
		var stdout bytes.Buffer
		require.NoError(t, run([]string{"-arch", arch}, &stdout, io.Discard))
		require.Contains(t, stdout.String(), "writing "+arch+".gguf: "+arch)
		info, err := os.Stat(arch + ".gguf")
		require.NoError(t, err)
		require.Less(t, info.Size(), int64(60e6))
	}
	var stdout bytes.Buffer
	require.NoError(t, run(nil, &stdout, io.Discard))
	require.Contains(t, stdout.String(), "writing qwen3.gguf: qwen3, ")
}

func TestRunWindow(t *testing.T) {
	dir := t.TempDir()
	gguf, again := filepath.Join(dir, "m.gguf"), filepath.Join(dir, "again.gguf")
	var stdout bytes.Buffer
	require.NoError(t, run([]string{
		"-o", gguf, "-arch", "gemma3", "-layers", "6", "-embed", "32", "-head-dim", "16", "-vocab", "300", "-window", "48",
	}, &stdout, io.Discard))
	require.Contains(t, stdout.String(), "vocab 300, window 48, seed 1\n")
	require.NoError(t, testmodel.Write(again, testmodel.Shape{
		Arch: "gemma3", Layers: 6, Embed: 32, HeadDim: 16, Vocab: 300, Window: 48, Seed: 1,
	}))
	first, err := os.ReadFile(gguf)
	require.NoError(t, err)
	second, err := os.ReadFile(again)
	require.NoError(t, err)
	require.Equal(t, first, second, "the flag reaches the shape")
}

func TestRunRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"tinyllama":                  {"-arch", "tinyllama"},
		"unexpected argument":        {"-o", "x", "stray"},
		"6 heads cannot share":       {"-o", "x", "-heads", "6", "-kv-heads", "4"},
		"no layer of qwen3 has":      {"-o", "x", "-window", "64"},
		"flag provided but not defi": {"-nonsense"},
	} {
		require.ErrorContains(t, run(args, io.Discard, io.Discard), want)
	}
	require.NoFileExists(t, "x")
	require.NoFileExists(t, "tinyllama.gguf")
}
