package tiering

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/testmodel"
	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
	"github.com/kvtier/kvtier/kvcache"
)

// The whole context of a model is cells times the bytes of a token.
func TestContextBytes(t *testing.T) {
	small := testmodel.Shape{Arch: "qwen3", Layers: 2, Vocab: 600, Embed: 64, Heads: 4, KVHeads: 2, HeadDim: 16, FFN: 32}
	path := filepath.Join(t.TempDir(), "m.gguf")
	require.NoError(t, testmodel.Write(path, small))
	for cells, want := range map[int]int64{0: 0, 1: 256, 8192 * 4: 8192 * 4 * small.KVBytesPerToken()} {
		n, err := contextBytes(Model{Path: path, CacheType: "f16", Cells: cells})
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	_, err := contextBytes(Model{Path: path, Cells: -1})
	require.ErrorContains(t, err, "not one that can be divided")
	_, err = contextBytes(Model{Path: filepath.Join(t.TempDir(), "none.gguf"), Cells: 1})
	require.ErrorContains(t, err, "read the model's shape")
}

// The budgets of a loaded model follow from its context, and its start line has them.
func TestSplitBudgets(t *testing.T) {
	m := testModelAt(t)
	small := testmodel.Shape{Arch: "qwen3", Layers: 2, Vocab: 600, Embed: 64, Heads: 4, KVHeads: 2, HeadDim: 16, FFN: 32}
	require.NoError(t, testmodel.Write(m.Path, small))
	for cells, says := range map[int]string{
		10_000_000: `local_budget="1.9 GB" .* ram_budget="640 MB"`, // 10,000,000 tokens of 256 bytes: 2.56 GB
		0:          `local_budget="20 GB"`,
	} {
		tierenvtest.Set(t, map[string]string{
			"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": filepath.Join(t.TempDir(), "pages"), "OLLAMA_KV_TIER_SPLIT": "25,25,50",
		})
		m.Cells = cells
		lines := make(chan string, 8)
		tiered, err := start(m, plainCache{}, []kvcache.Rows{plainCache{}}, slog.New(slog.NewTextHandler(lineWriter(lines), nil)))
		require.NoError(t, err)
		require.Contains(t, <-lines, "OLLAMA_KV_TIER_SPLIT")
		require.Regexp(t, says, <-lines)
		tiered.Close()
	}
}
