package modelfile

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ollama/ollama/fs/ggml"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/sizing"
	"github.com/kvtier/kvtier/internal/testmodel"
)

func TestDecoders(t *testing.T) {
	bytePair := testmodel.Head(t, ggml.KV{
		"general.architecture": "qwen3", "tokenizer.ggml.model": "gpt2",
		"tokenizer.ggml.tokens": []string{"Ġhello", "Ċ", "Ã", "¶", "<|im_end|>"},
	})
	d, err := OpenDecoder(bytePair)
	require.NoError(t, err)
	text, err := d.Text([]int32{0, 1, 2, 3, 4})
	require.NoError(t, err)
	require.Equal(t, " hello\nö<|im_end|>", text, "a character of two tokens is one")

	pieces := ggml.KV{
		"general.architecture": "llama", "tokenizer.ggml.model": "llama",
		"tokenizer.ggml.tokens":     []string{"<unk>", "▁hello", "▁there", "<0xC3>", "<0xB6>"},
		"tokenizer.ggml.scores":     []float32{0, 0, 0, 0, 0},
		"tokenizer.ggml.token_type": []int32{2, 1, 1, 6, 6},
	}
	d, err = OpenDecoder(testmodel.Head(t, pieces))
	require.NoError(t, err)
	text, err = d.Text([]int32{1, 2, 3, 4})
	require.NoError(t, err)
	require.Equal(t, " hello thereö", text)

	text, err = d.Text([]int32{1, -7, -9, 2})
	require.NoError(t, err)
	require.Equal(t, " hello[image] there", text)
	for _, token := range []int32{5, 1 << 30} {
		_, err = d.Text([]int32{1, token})
		require.ErrorContains(t, err, "is not one of the model's 5")
	}
	pieces["tokenizer.ggml.token_type"] = []int32{2, 1, typeControl, 6, 6}
	d, err = OpenDecoder(testmodel.Head(t, pieces))
	require.NoError(t, err)
	words, err := d.Words([]int32{2, 1, -7, 2, 3, 4, 3})
	require.NoError(t, err)
	require.Equal(t, "helloö", words, "without control tokens, images and half a character")
	_, err = d.Words([]int32{5})
	require.ErrorContains(t, err, "is not one of the model's 5")
	delete(pieces, "tokenizer.ggml.scores")
	_, err = OpenDecoder(testmodel.Head(t, pieces))
	require.ErrorContains(t, err, "can be shown as text")
	pieces["tokenizer.ggml.model"] = "bert"
	_, err = OpenDecoder(testmodel.Head(t, pieces))
	require.ErrorContains(t, err, `its tokenizer is "bert"`)
}

// TestHostileModels: a model of other people may lie about its lengths, and has no other effect
// than an error.
func TestHostileModels(t *testing.T) {
	more := ggml.KV{
		"general.architecture": "llama", "tokenizer.ggml.model": "llama",
		"tokenizer.ggml.tokens":     []string{"<unk>", "▁hello", "▁there", "<0xZZ>", "\x1b[2J"},
		"tokenizer.ggml.scores":     []float32{0, 0, 0, 0, 0},
		"tokenizer.ggml.token_type": []int32{2, 1, 1, 6, 6, 1, 1, 1},
	}
	d, err := OpenDecoder(testmodel.Head(t, more))
	require.NoError(t, err, "more types than tokens")
	text, err := d.Text([]int32{1, 4})
	require.NoError(t, err)
	require.Equal(t, " hello\x1b[2J", text)
	_, err = d.Text([]int32{3})
	require.Error(t, err)

	good, err := os.ReadFile(testmodel.Head(t, ggml.KV{"general.architecture": "llama", "a": "b"}))
	require.NoError(t, err)
	for at := len("GGUF") + 4; at+8 <= len(good); at++ {
		for _, length := range []uint64{1 << 40, 1 << 62, math.MaxUint64} {
			path := filepath.Join(t.TempDir(), "model.gguf")
			data := slices.Clone(good)
			binary.LittleEndian.PutUint64(data[at:], length)
			require.NoError(t, os.WriteFile(path, data, 0o600))
			_, err := OpenDecoder(path)
			require.Error(t, err)
			if err := sizing.CheckFile(path); err != nil { // a value that is no length may be any
				require.ErrorIs(t, err, sizing.ErrNotGGUF)
			}
		}
	}
}
