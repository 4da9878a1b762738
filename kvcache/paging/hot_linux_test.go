package paging

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/ggml-paged/pager"
	"github.com/kvtier/kvtier/internal/testmodel"
	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
	"github.com/kvtier/kvtier/pagedenv"
)

// HOT is the pager's memory, at least two pages of a layer, unless OLLAMA_PAGED_HOST_GB is set.
func TestHotIsThePagersMemory(t *testing.T) {
	clearEnvironment(t)
	t.Setenv("HOME", t.TempDir())
	small := testmodel.Shape{Arch: "qwen3", Layers: 2, Vocab: 600, Embed: 64, Heads: 4, KVHeads: 2, HeadDim: 16, FFN: 32}
	path := filepath.Join(t.TempDir(), "m.gguf")
	require.NoError(t, testmodel.Write(path, small))
	const cells, pageCells = 4096, 256
	whole := uint64(cells * small.KVBytesPerToken())
	p, err := Open(Config{PageCells: pageCells, HostBytes: whole, SpillDir: t.TempDir()}, nil, nil)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	layer, err := p.AddLayer(pager.Layer{Cells: cells, KVHeads: 2, KeyDim: 16, ValueDim: 16, KeyType: pager.F16, ValueType: pager.F16})
	require.NoError(t, err)
	least := 2 * p.PageBytes(layer)

	of := func(tiering, split, file string) uint64 {
		tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": tiering, "OLLAMA_KV_TIER_SPLIT": split})
		c, err := FromEnvironment()
		require.NoError(t, err)
		c.PageCells = pageCells
		return c.ForModel(file, cells, "f16").HostBytes
	}
	unset := of("1", "", path)
	require.Equal(t, whole/2, of("1", "50,0,50", path))
	require.Equal(t, least, of("1", "0,0,100", path))
	require.InDelta(t, unset, of("0", "50,0,50", path), 1e9, "with tiering off")
	require.InDelta(t, unset, of("1", "50,0,50", filepath.Join(t.TempDir(), "none.gguf")), 1e9, "of a file that cannot be read")
	t.Setenv("OLLAMA_PAGED_HOST_GB", "0.5")
	require.EqualValues(t, 5e8, of("1", "50,0,50", path))
}

// A share of a context that is larger than memory leaves half of the available memory to others.
func TestHotOfAHugeContext(t *testing.T) {
	clearEnvironment(t)
	t.Setenv("HOME", t.TempDir())
	wide := testmodel.Shape{Arch: "qwen3", Layers: 2, Vocab: 600, Embed: 64, Heads: 4, KVHeads: 2, HeadDim: 16, FFN: 32}
	path := filepath.Join(t.TempDir(), "m.gguf")
	require.NoError(t, testmodel.Write(path, wide))
	tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_SPLIT": "90,0,10"})
	const cells = 1 << 31 // 512 GiB
	_, hot, err := hotOf(path, cells, "f16", pagedenv.DefaultPageCells)
	require.NoError(t, err)
	require.Less(t, Config{PageCells: pagedenv.DefaultPageCells}.ForModel(path, cells, "f16").HostBytes, hot)
}
