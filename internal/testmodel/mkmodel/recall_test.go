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

func TestRunRecall(t *testing.T) {
	dir := t.TempDir()
	gguf, again := filepath.Join(dir, "m.gguf"), filepath.Join(dir, "again.gguf")
	for _, test := range []struct {
		args []string
		want testmodel.Recall
	}{
		{nil, testmodel.Recall{Seed: 1}},
		{[]string{"-layers", "3", "-heads", "8", "-context", "9000", "-seed", "5"},
			testmodel.Recall{Layers: 3, Heads: 8, Context: 9000, Seed: 5}},
	} {
		var stdout bytes.Buffer
		require.NoError(t, run(append(test.args, "-o", gguf, "-arch", "recall"), &stdout, io.Discard))
		require.Contains(t, stdout.String(), "m.gguf: recall as qwen3, ")
		require.NoError(t, testmodel.WriteRecall(again, test.want))
		first, err := os.ReadFile(gguf)
		require.NoError(t, err)
		second, err := os.ReadFile(again)
		require.NoError(t, err)
		require.Equal(t, first, second, "flags reach the model")
	}
}

func TestRunRecallRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"fixed -embed":      {"-embed", "512"},
		"fixed -vocab":      {"-vocab", "2048"},
		"fixed -window":     {"-window", "64"},
		"layers is 1":       {"-layers", "1"},
		"3 heads cannot sh": {"-heads", "3"},
	} {
		args = append(args, "-arch", "recall", "-o", filepath.Join(t.TempDir(), "x"))
		require.ErrorContains(t, run(args, io.Discard, io.Discard), want)
	}
}
