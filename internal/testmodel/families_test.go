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

// TestHybridLayers: layers without K/V have no tensors of attention.
func TestHybridLayers(t *testing.T) {
	for arch, tensor := range map[string]string{"lfm2": "shortconv.conv", "qwen3next": "ssm_conv1d"} {
		s := small(arch)
		s.Layers = 5
		model := decode(t, write(t, s))
		require.Equal(t, []uint64{0, 2, 0, 2, 0}, model.KV().HeadCountKV(), arch)
		for i := range s.Layers {
			require.Len(t, model.Tensors().Items(block(i, tensor)), (i+1)%2, arch)
			require.Len(t, model.Tensors().Items(block(i, "attn_k")), i%2, arch)
		}
	}
}

// TestNemotronHLayers: each layer is of one of three kinds, which the file shows by the
// missing parts.
func TestNemotronHLayers(t *testing.T) {
	s := small("nemotron_h")
	s.Layers = 5
	model := decode(t, write(t, s))
	width := s.WithDefaults().FFN
	require.Equal(t, []uint64{0, 0, 2, 0, 0}, model.KV().HeadCountKV())
	require.Equal(t, []uint32{0, uint32(width), 0, uint32(width), 0}, model.KV().Uints("feed_forward_length"))
	for i, tensor := range []string{"ssm_in", "ffn_up", "attn_k", "ffn_up", "ssm_in"} {
		require.Len(t, model.Tensors().Items(block(i, tensor)), 1)
	}
	require.EqualValues(t, 2*2*32*2, s.KVBytesPerToken())
}

// TestGemma4Layers: K/V of layers with a window have another shape than K/V of
// those without, which have no projection for values.
func TestGemma4Layers(t *testing.T) {
	s := small("gemma4")
	tensors := decode(t, write(t, s)).Tensors()
	shapes := func(name string) (shapes [][]uint64) {
		for _, tensor := range tensors.Items(name) {
			shapes = append(shapes, tensor.Shape)
		}
		return shapes
	}
	require.Equal(t, [][]uint64{{64, 2 * 16}}, shapes("blk.0.attn_k.weight"))
	require.Equal(t, [][]uint64{{64, 2 * 16}}, shapes("blk.0.attn_v.weight"))
	require.Equal(t, [][]uint64{{64, 1 * 32}}, shapes("blk.1.attn_k.weight"))
	require.Empty(t, shapes("blk.1.attn_v"))
	require.Empty(t, shapes("blk.2.attn_k"))
	require.Empty(t, shapes("blk.3.attn_k"))
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

// TestEmbeddingsOfImageTokens: the engine looks up image tokens with any vocabulary.
func TestEmbeddingsOfImageTokens(t *testing.T) {
	for arch, want := range map[string]int{"gemma3-vision": 256001, "mllama": 128257, "mistral3": 600} {
		path := write(t, small(arch))
		tensors := decode(t, path).Tensors()
		require.EqualValues(t, want, tensors.Items(embeddingTensor)[0].Shape[1])
		require.EqualValues(t, 600, tensors.Items(outputTensor)[0].Shape[1])
		require.NotZero(t, decode(t, path).KV().Uint("vision.block_count"))
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
