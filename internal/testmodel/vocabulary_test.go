package testmodel

import (
	"strings"
	"testing"

	"github.com/ollama/ollama/fs/ggml"
	"github.com/ollama/ollama/tokenizer"
	"github.com/stretchr/testify/require"
)

// qwenPretokenizer splits text in upstream's qwen3 model, and in its llama model for
// "qwen2".
const qwenPretokenizer = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

// readTokenizer builds the tokenizer from a file as upstream's models do.
func readTokenizer(t *testing.T, kv ggml.KV) tokenizer.BytePairEncoding {
	t.Helper()
	return tokenizer.NewBytePairEncoding(&tokenizer.Vocabulary{
		Values: kv.Strings("tokenizer.ggml.tokens"),
		Types:  kv.Ints("tokenizer.ggml.token_type"),
		Merges: kv.Strings("tokenizer.ggml.merges"),
		AddBOS: kv.Bool("tokenizer.ggml.add_bos_token", true),
		BOS:    []int32{int32(kv.Uint("tokenizer.ggml.bos_token_id"))},
		EOS: append(
			[]int32{int32(kv.Uint("tokenizer.ggml.eos_token_id"))},
			kv.Ints("tokenizer.ggml.eos_token_ids")...),
	}, qwenPretokenizer)
}

func smallTokenizer(t *testing.T) tokenizer.BytePairEncoding {
	return readTokenizer(t, decode(t, write(t, small("qwen3"))).KV())
}

func TestTokenizerRoundTrip(t *testing.T) {
	bpe := smallTokenizer(t)
	for _, text := range []string{
		"", "a", " ", "\n\n", "The old castle, by the sea.",
		"def f(x):\n\treturn x**2  # ünïcödé 日本語 🦙\r\n",
		ImStart + "user\nhello" + ImEnd + "\n", strings.Repeat("x", 1000),
	} {
		ids, err := bpe.Encode(text, true)
		require.NoError(t, err)
		decoded, err := bpe.Decode(ids)
		require.NoError(t, err)
		require.Equal(t, text, decoded)
	}
	for b := 1; b < 256; b++ { // upstream's Decode drops NUL
		decoded, err := bpe.Decode([]int32{int32(b)})
		require.NoError(t, err)
		require.Equal(t, string([]byte{byte(b)}), decoded, "token %d is byte %d", b, b)
	}
}

func TestSpecialTokens(t *testing.T) {
	bpe := smallTokenizer(t)
	ids, err := bpe.Encode(ImStart+ImEnd+EndOfText, true)
	require.NoError(t, err)
	require.Equal(t, []int32{598, 599, 597}, ids, "one token each, no BOS in front")
	require.True(t, bpe.Is(599, tokenizer.SpecialEOS))
	require.True(t, bpe.Is(597, tokenizer.SpecialEOS))
	require.False(t, bpe.Is(598, tokenizer.SpecialEOS))
}

func TestVocabularySizes(t *testing.T) {
	for _, size := range []int{vocabMin, 300, 2048, 2100} {
		v := newVocabulary(size)
		require.Len(t, v.tokens, size)
		require.Len(t, v.types, size)
		seen := make(map[string]bool)
		for _, token := range v.tokens {
			require.False(t, seen[token], "token %q appears twice", token)
			seen[token] = true
		}
		for _, merge := range v.merges {
			require.True(t, seen[strings.Replace(merge, " ", "", 1)], "merge %q makes no token", merge)
		}
	}
	require.NotContains(t, newVocabulary(2048).types, int32(tokenizer.TOKEN_TYPE_UNUSED))
	require.Contains(t, newVocabulary(2100).types, int32(tokenizer.TOKEN_TYPE_UNUSED))
}

func TestPrompt(t *testing.T) {
	for _, vocab := range []int{600, 2048} {
		s := small("qwen3")
		s.Vocab = vocab
		bpe := readTokenizer(t, decode(t, write(t, s)).KV())
		long, err := Prompt(s, 1000, 3)
		require.NoError(t, err)
		ids, err := bpe.Encode(long, true)
		require.NoError(t, err)
		require.Len(t, ids, 1000)

		short, err := Prompt(s, 100, 3)
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(long, short))
		other, err := Prompt(s, 100, 4)
		require.NoError(t, err)
		require.NotEqual(t, short, other)
	}
	_, err := Prompt(Shape{Vocab: vocabMin}, 10, 1)
	require.ErrorContains(t, err, "choose a larger one")
	_, err = Prompt(Shape{Vocab: 1}, 10, 1)
	require.ErrorContains(t, err, "vocab is 1")
}
