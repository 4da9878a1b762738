package testmodel

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDefaults(t *testing.T) {
	s := Shape{}.WithDefaults()
	require.Equal(t, Shape{Arch: "qwen3", Layers: 8, Embed: 512, Heads: 8, KVHeads: 4, HeadDim: 64, FFN: 1536, Vocab: 2048, Context: 131072}, s)
	require.EqualValues(t, 2*2*8*4*64, s.KVBytesPerToken())
	require.Equal(t, 64, Shape{Arch: "gemma3"}.WithDefaults().Window)
	require.Equal(t, 256, Shape{Arch: "gptoss"}.WithDefaults().FFN, "an expert is narrow")
	require.Equal(t, 32, Shape{Arch: "olmo3", Embed: 128}.WithDefaults().HeadDim, "the heads make up embed")
	require.Equal(t, 1, Shape{Arch: "deepseek2", Heads: 3}.WithDefaults().KVHeads)
	require.Equal(t, 3, Shape{Heads: 3}.WithDefaults().KVHeads, "4 does not divide 3")
}

func TestValidation(t *testing.T) {
	for _, test := range []struct {
		shape Shape
		want  string
	}{
		{Shape{Arch: "gpt9"}, `architecture "gpt9" is not one of deepseek2, gemma3, gemma3-vision, `},
		{Shape{Heads: 6, KVHeads: 4}, "6 heads cannot share 4 kv-heads"},
		{Shape{Vocab: 258}, "vocab is 258, must be 259"},
		{Shape{Window: 64}, "no layer of qwen3 has a sliding window"},
		{Shape{Arch: "lfm2", Layers: 1}, "layers is 1, must be 2"},
		{Shape{Arch: "olmo3", HeadDim: 32}, "4 heads of 32 are not an embed of 256"},
	} {
		require.ErrorContains(t, Write(filepath.Join(t.TempDir(), "m.gguf"), test.shape), test.want)
	}
}
