package tiering

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/testmodel"
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
