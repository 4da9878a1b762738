package testmodel

import (
	"strings"
	"testing"

	"github.com/ollama/ollama/tokenizer"
	"github.com/stretchr/testify/require"
)

// TestKVBytesPerToken: only layers with K/V count.
func TestKVBytesPerToken(t *testing.T) {
	for arch, want := range map[string]int{
		"qwen2":         4 * 2 * 64 * 2,
		"lfm2":          2 * 2 * 64 * 2,
		"qwen3next":     2 * 2 * 64 * 2,
		"deepseek2":     4 * (32 + 64 + 64),
		"glm4moelite":   4 * (32 + 64 + 64),
		"gemma3n":       4 * 2 * 64 * 2,
		"mllama":        4 * 1 * 32 * 2,
		"qwen35":        2 * 2 * 64 * 2,
		"nemotron_h":    2 * 2 * 64 * 2,
		"gemma4":        2*2*32*2 + 2*1*64*2,
		"gemma3-vision": 7 * 2 * 32 * 2,
		"gemma4-vision": 2*2*32*2 + 2*1*64*2,
	} {
		require.EqualValues(t, f16Bytes*want, Shape{Arch: arch}.KVBytesPerToken(), arch)
	}
}

// TestSpacedMerges: merges have the spelling of tokens.
func TestSpacedMerges(t *testing.T) {
	kv := decode(t, write(t, small("gemma4"))).KV()
	require.Len(t, kv.Strings("tokenizer.ggml.merges"), len(newVocabulary(600).merges))
	known := kv.Strings("tokenizer.ggml.tokens")
	for _, merge := range kv.Strings("tokenizer.ggml.merges") {
		require.Contains(t, known, strings.Replace(merge, " ", "", 1))
	}
	require.Contains(t, known, sentencePieceSpace+"the")
}

// TestWindowPatterns: the file lists the layers with a window.
func TestWindowPatterns(t *testing.T) {
	for arch, want := range map[string][]bool{
		"olmo3":   {true, true, true, false, true},
		"gemma3n": {false, true, false, true, false},
	} {
		s := small(arch)
		s.Layers = len(want)
		require.Equal(t, want, decode(t, write(t, s)).KV().Bools("attention.sliding_window_pattern"), arch)
	}
	s := small("llama4")
	s.Window = 48
	require.EqualValues(t, 48, decode(t, write(t, s)).KV().Uint("attention.chunk_size"))
}

// TestGemma3nSharedLayers: the layers whose caches the last two layers read have K/V, and a
// window exactly if the reader has one.
func TestGemma3nSharedLayers(t *testing.T) {
	for layers := gemma3nLayersMin; layers < 9; layers++ {
		s := Shape{Arch: "gemma3n", Layers: layers}
		first := layers - gemma3nShared
		require.True(t, gemma3nIsLocal(s, first-2))
		require.False(t, gemma3nIsLocal(s, first-1))
	}
	tensors := decode(t, write(t, small("gemma3n"))).Tensors()
	require.Len(t, tensors.Items("blk.1.attn_k.weight"), 1)
	require.Empty(t, tensors.Items("blk.2.attn_k"))
}

// TestMllamaLayers: the last layer selects the output tokens, so it must not be a layer that
// reads the image.
func TestMllamaLayers(t *testing.T) {
	for layers := mllamaLayersMin; layers < 9; layers++ {
		s := small("mllama")
		s.Layers = layers
		cross := mllama(s).metadata["attention.cross_attention_layers"]
		require.NotEmpty(t, cross)
		require.NotContains(t, cross, int32(layers-1))
	}
}

// TestSentencePiece: text has the same tokens with either kind of tokenizer.
func TestSentencePiece(t *testing.T) {
	kv := decode(t, write(t, small("gemma3n"))).KV()
	require.Empty(t, kv.Strings("tokenizer.ggml.merges"))
	spm := tokenizer.NewSentencePiece(&tokenizer.Vocabulary{
		Values: kv.Strings("tokenizer.ggml.tokens"),
		Scores: kv.Floats("tokenizer.ggml.scores"),
		Types:  kv.Ints("tokenizer.ggml.token_type"),
		AddBOS: kv.Bool("tokenizer.ggml.add_bos_token", true),
	})
	bpe := smallTokenizer(t)
	words, err := Prompt(small("gemma3n"), 500, 1)
	require.NoError(t, err)
	for _, text := range []string{
		words, "The old castle, by the sea.\n", "ünïcödé 日本語\t🦙", ImStart + "user\nhello" + ImEnd + "\n", strings.Repeat("x", 100),
	} {
		want, err := bpe.Encode(text, true)
		require.NoError(t, err)
		got, err := spm.Encode(text, true)
		require.NoError(t, err)
		require.Equal(t, want, got, text)
		decoded, err := spm.Decode(got)
		require.NoError(t, err)
		require.Equal(t, text, decoded)
	}
}
