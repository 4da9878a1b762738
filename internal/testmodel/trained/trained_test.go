package trained

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/ollama/ollama/fs/ggml"
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
	const most = 8_000_000 // the file is a part of the repository
	require.LessOrEqual(t, len(file), most)
	require.Greater(t, len(file), most/2, "is this the file, or a pointer to it?")
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
