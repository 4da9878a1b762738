package testmodel

import (
	"slices"
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

// TestRouting: routers read dimensions that no layer writes to.
func TestRouting(t *testing.T) {
	s := small("gptoss")
	path := write(t, s)
	kv := decode(t, path).KV()
	require.EqualValues(t, experts, kv.Uint("expert_count"))
	require.EqualValues(t, expertsUsed, kv.Uint("expert_used_count"))

	router := readF16(t, path, "blk.1.ffn_gate_inp.weight")
	require.Len(t, router, experts)
	for _, row := range router {
		for column, w := range row {
			if column > routeDims(s) {
				require.Zero(t, w, "column %d", column)
			} else {
				require.NotZero(t, w, "column %d", column)
			}
		}
	}
	embeddings := readF16(t, path, "token_embd.weight")
	for token, x := range embeddings {
		sums := make([]float64, experts)
		for e, row := range router {
			for column := 1; column <= routeDims(s); column++ {
				sums[e] += float64(row[column]) * float64(x[column])
			}
		}
		slices.Sort(sums)
		unit := float64(router[0][routeDims(s)]) / routeStep * float64(embeddings[0][routeDims(s)])
		for e := range experts - 1 {
			require.Greater(t, sums[e+1]-sums[e], 0.9*routeStep*unit, "token %d", token)
		}
	}
	for _, name := range []string{"blk.1.attn_output.weight", "blk.1.ffn_down_exps.weight"} {
		for i, row := range readF16(t, path, name) {
			if i%s.Embed <= routeDims(s) {
				require.Equal(t, make([]float32, len(row)), row, "row %d", i)
			} else {
				require.NotZero(t, row[0], "row %d", i)
			}
		}
	}
}
