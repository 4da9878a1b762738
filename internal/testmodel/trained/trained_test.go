package trained

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/ollama/ollama/fs/ggml"
	"github.com/ollama/ollama/tokenizer"
	"github.com/stretchr/testify/require"
)

func decode(t *testing.T) *ggml.GGML {
	t.Helper()
	f, err := os.Open(Path(t))
	require.NoError(t, err)
	defer f.Close()
	model, err := ggml.Decode(f, -1)
	require.NoError(t, err)
	return model
}

func TestFileIsSmall(t *testing.T) {
	require.LessOrEqual(t, len(file), FileBytesMax)
	require.Greater(t, len(file), FileBytesMax/2, "is this the file, or a pointer to it?")
}

func TestShape(t *testing.T) {
	model := decode(t)
	kv := model.KV()
	require.Equal(t, "qwen3", kv.Architecture())
	require.EqualValues(t, 6, kv.BlockCount())
	require.EqualValues(t, 192, kv.EmbeddingLength())
	require.EqualValues(t, 4, kv.HeadCountMax())
	require.EqualValues(t, 2, kv.HeadCountKVMax())
	require.EqualValues(t, 64, kv.EmbeddingHeadCountK())
	require.EqualValues(t, 64, kv.EmbeddingHeadCountV())
	require.EqualValues(t, 512, kv.Uint("feed_forward_length"))
	require.GreaterOrEqual(t, kv.ContextLength(), uint64(ContextTokens))
	require.Len(t, kv.Strings("tokenizer.ggml.tokens"), 4096)
	require.Positive(t, kv.Value("kvtier.training.tokens"), "train.py --from needs it")
	require.Positive(t, kv.Value("kvtier.training.step"))

	matrices := 0
	for _, tensor := range model.Tensors().Items() {
		require.NotEqual(t, "output.weight", tensor.Name, "the embeddings are tied")
		if strings.HasSuffix(tensor.Name, "_norm.weight") {
			require.EqualValues(t, ggml.TensorTypeF32, tensor.Kind, tensor.Name)
			continue
		}
		require.EqualValues(t, ggml.TensorTypeF16, tensor.Kind, tensor.Name)
		matrices++
	}
	require.Equal(t, 1+6*7, matrices)
}

// pretokenizer splits text in upstream's qwen3 model.
const pretokenizer = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

func readTokenizer(kv ggml.KV) tokenizer.BytePairEncoding {
	return tokenizer.NewBytePairEncoding(&tokenizer.Vocabulary{
		Values: kv.Strings("tokenizer.ggml.tokens"),
		Types:  kv.Ints("tokenizer.ggml.token_type"),
		Merges: kv.Strings("tokenizer.ggml.merges"),
		AddBOS: kv.Bool("tokenizer.ggml.add_bos_token", true),
		EOS:    append([]int32{int32(kv.Uint("tokenizer.ggml.eos_token_id"))}, kv.Ints("tokenizer.ggml.eos_token_ids")...),
	}, pretokenizer)
}

func TestTokenizer(t *testing.T) {
	bpe := readTokenizer(decode(t).KV())
	table, _ := Table(1, TableMax)
	for _, text := range []string{"", "a", "\n\n", Prose(), table, "def f(x):\n\treturn x**2  # ünïcödé 日本語 🦙\r\n"} {
		ids, err := bpe.Encode(text, true)
		require.NoError(t, err)
		back, err := bpe.Decode(ids)
		require.NoError(t, err)
		require.Equal(t, text, back)
	}
	ids, err := bpe.Encode(Prose(), true)
	require.NoError(t, err)
	require.Less(t, len(ids), len(Prose())/3, "tokens are words and parts of words")
	require.Greater(t, len(ids), ContextTokens)

	ids, err = bpe.Encode("<|endoftext|><|im_start|><|im_end|>", true)
	require.NoError(t, err)
	require.Equal(t, []int32{4093, 4094, 4095}, ids)
	require.True(t, bpe.Is(4093, tokenizer.SpecialEOS))
	require.True(t, bpe.Is(4095, tokenizer.SpecialEOS))
}

func TestTable(t *testing.T) {
	table, lookUps := Table(1, 12)
	require.Len(t, lookUps, 12)
	for _, l := range lookUps {
		require.Contains(t, table, strings.TrimPrefix(l.Question, "\n\n")+" "+l.Answer+"\n")
		require.True(t, l.Right(" "+l.Answer+"\nmore"))
		require.True(t, l.Right(" "+l.Answer))
		require.False(t, l.Right(" "+l.Answer+" and\n"))
		require.False(t, l.Right("\n"+l.Answer))
	}
	words := strings.Fields(strings.NewReplacer("Settings:", "", "=", "").Replace(table))
	seen := make(map[string]bool)
	for _, word := range words {
		require.False(t, seen[word], "%q is in two places", word)
		seen[word] = true
	}
	again, _ := Table(1, 12)
	require.Equal(t, table, again)
	other, _ := Table(2, 12)
	require.NotEqual(t, table, other)
}

// TestQuestionsAreAboutTheHeldOutTable: the questions fit the table before the held-out text.
func TestQuestionsAreAboutTheHeldOutTable(t *testing.T) {
	data, err := os.ReadFile("questions.json")
	require.NoError(t, err)
	var questions []struct{ Question, Answer string }
	require.NoError(t, json.Unmarshal(data, &questions))
	require.NotEmpty(t, questions)
	for _, q := range questions {
		require.Contains(t, heldOut, "\n"+strings.TrimPrefix(q.Question, "\n\n")+" "+q.Answer+"\n")
	}
	require.NotContains(t, Prose(), "Settings:")
	require.True(t, strings.HasPrefix(Prose(), "Introduction\n"))
}
