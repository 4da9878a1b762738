package testmodel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// recallMargin is the least lead of the right token's logit, for two layers: 21 by
// construction, less rounding.
const recallMargin = 20.5

var cacheTypes = map[string]rounding{"f32": exactly, "f16": toF16, "q8_0": toQ8}

func writeRecall(t *testing.T, r Recall) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "recall.gguf")
	require.NoError(t, WriteRecall(path, r))
	return path
}

// randomTokens draws text from the printable tokens other than the given ones.
func randomTokens(random *rand.Rand, n int, except ...int32) []int32 {
	printable := newVocabulary(recallVocab).printable
	for _, token := range except {
		printable[token] = false
	}
	tokens := make([]int32, n)
	for i := range tokens {
		for tokens[i] = -1; tokens[i] < 0 || !printable[tokens[i]]; {
			tokens[i] = random.Int32N(recallVocab)
		}
	}
	return tokens
}

// hidden is random text that ends in key and has key and value at a distance before the end.
func hidden(random *rand.Rand, n, distance int, key, value int32) []int32 {
	tokens := randomTokens(random, n, key, value)
	tokens[n-1] = key
	tokens[n-1-distance], tokens[n-distance] = key, value
	return tokens
}

func TestRecallNear(t *testing.T) {
	shared := readReference(t, writeRecall(t, Recall{Seed: 1}))
	for name, round := range cacheTypes {
		for _, distance := range []int{1, 2, 3, 7, 25, 44, 100, 198} {
			t.Run(fmt.Sprintf("%s/%d", name, distance), func(t *testing.T) {
				t.Parallel()
				m := shared.with(round)
				random := rand.New(rand.NewPCG(uint64(distance), 2))
				pair := randomTokens(random, 2)
				key, value := pair[0], pair[1]
				if distance == 1 {
					value = key
				}
				token, margin := lead(m.logits(hidden(random, 200, distance, key, value)))
				require.Equal(t, value, token)
				require.Greater(t, margin, recallMargin)
			})
		}
	}
}

func TestRecallFar(t *testing.T) {
	if testing.Short() {
		t.Skip("attends to 131,072 tokens 15 times")
	}
	shared := readReference(t, writeRecall(t, Recall{Seed: 3}))
	for name, round := range cacheTypes {
		distances := []int{defaultContext - 2}
		if name == "f16" {
			distances = append(distances, 2048, 65537)
		}
		for _, distance := range distances {
			t.Run(fmt.Sprintf("%s/%d", name, distance), func(t *testing.T) {
				t.Parallel()
				m := shared.with(round)
				random := rand.New(rand.NewPCG(uint64(distance), 4))
				pair := randomTokens(random, 2)
				tokens := hidden(random, defaultContext, distance, pair[0], pair[1])
				at := len(tokens) - distance // position of the value
				token, margin := lead(m.logitsAcross(tokens, at))
				require.Equal(t, pair[1], token)
				require.Greater(t, margin, recallMargin)
			})
		}
	}
}

// TestRecallOtherShapes: models with more layers and other groups of heads recall, too.
func TestRecallOtherShapes(t *testing.T) {
	for _, r := range []Recall{{Heads: 2}, {Heads: 16}, {Layers: 3}, {Layers: 5, Heads: 6}} {
		t.Run(fmt.Sprintf("%d-%d", r.Layers, r.Heads), func(t *testing.T) {
			t.Parallel()
			m := readReference(t, writeRecall(t, r))
			random := rand.New(rand.NewPCG(5, 5))
			token, margin := lead(m.logits(hidden(random, 60, 50, 300, 400)))
			require.EqualValues(t, 400, token)
			require.Greater(t, margin, 18.0)
		})
	}
}

// TestRecallPromptInModel reads a whole answer, token by token.
func TestRecallPromptInModel(t *testing.T) {
	path := writeRecall(t, Recall{})
	m := readReference(t, path)
	bpe := readTokenizer(t, decode(t, path).KV())
	questions, err := RecallPrompts(6, 150, 1, 70, 144)
	require.NoError(t, err)
	for _, question := range questions {
		tokens, err := bpe.Encode(question.Prompt, true)
		require.NoError(t, err)
		prompt := len(tokens)
		for range RecallAnswerTokens {
			token, margin := lead(m.logits(tokens))
			require.Greater(t, margin, recallMargin)
			tokens = append(tokens, token)
		}
		answer, err := bpe.Decode(tokens[prompt:])
		require.NoError(t, err)
		require.Equal(t, question.Answer, answer)
	}
}

// TestRecallCanFail: the checks of recall notice faults.
func TestRecallCanFail(t *testing.T) {
	const key, other, value = 300, 301, 400
	path := writeRecall(t, Recall{})
	random := rand.New(rand.NewPCG(7, 7))
	tokens := hidden(random, 200, 150, key, value)
	m := readReference(t, path)
	token, _ := lead(m.logits(tokens))
	require.EqualValues(t, value, token)

	// Another key has another answer, and a missing key has none.
	tokens[20], tokens[21] = other, 500
	tokens[199] = other
	token, _ = lead(m.logits(tokens))
	require.EqualValues(t, 500, token)
	tokens[199] = 302
	_, margin := lead(m.logits(randomTokensBefore(random, tokens[199], 200)))
	require.Less(t, margin, recallMargin/2)

	// A key/value row of the needle is lost, or one token off.
	tokens[199] = key
	lost := append([]int32(nil), tokens...)
	lost[50] = 600
	token, _ = lead(m.logits(lost))
	require.NotEqualValues(t, value, token)

	// The rotation of another model.
	m.setRopeBase(100)
	token, margin = lead(m.logits(tokens))
	require.False(t, token == value && margin > recallMargin)

	// One query head of four attends to nothing useful.
	for layer, moved := range []float64{0.9, -5} {
		m = readReference(t, path)
		clear(m.layers[layer].query[m.dim:][:m.dim])
		_, margin = lead(m.logits(tokens))
		require.InDelta(t, 21+moved, margin, 0.1)
	}
}

// randomTokensBefore is text without a token, except at its end.
func randomTokensBefore(random *rand.Rand, token int32, n int) []int32 {
	return append(randomTokens(random, n-1, token), token)
}

// TestLookBackLeak sums the weights that layer 0 gives to all positions except the previous
// one, at every possible distance.
func TestLookBackLeak(t *testing.T) {
	score := func(distance int) float64 {
		sum := 0.0
		for pair := range positionPairs {
			sum += math.Cos(math.Pow(4, -float64(pair)) * float64(distance-1))
		}
		return sum * lookBackPeak / positionPairs
	}
	leak, closest := 0.0, math.Inf(1)
	for distance := range recallContextMax {
		if distance != 1 {
			below := lookBackPeak - score(distance)
			closest = min(closest, below)
			leak += math.Exp(-below)
		}
	}
	require.InDelta(t, 15.77, closest, 0.01)
	require.Less(t, leak, 1e-6)
	// Except at distances up to two, q8_0 has room for its errors.
	for distance := 3; distance < recallContextMax; distance++ {
		require.Greater(t, lookBackPeak-score(distance), 30.0, "distance %d", distance)
	}
}

// TestRecallRotation: an engine that computes angles in float32, each pair from the previous
// one, gets exact angles at any position.
func TestRecallRotation(t *testing.T) {
	step := float32(math.Pow(recallRopeBase, -2.0/recallHeadDim))
	for _, position := range []int{1, 3, 99999, defaultContext - 1, recallContextMax - 1} {
		angle := float32(position)
		for pair := range rotaryPairs {
			require.Equal(t, math.Ldexp(float64(position), -2*pair), float64(angle))
			angle *= step
		}
	}
}

func TestRecallValidation(t *testing.T) {
	for _, test := range []struct {
		recall Recall
		want   string
	}{
		{Recall{Layers: 1}, "layers is 1, must be from 2"},
		{Recall{Heads: 3}, "3 heads cannot share 2 kv-heads"},
		{Recall{Heads: -2}, "heads is -2"},
		{Recall{Context: recallContextMax + 1}, "context is 1048577"},
	} {
		path := filepath.Join(t.TempDir(), "m.gguf")
		require.ErrorContains(t, WriteRecall(path, test.recall), test.want)
		require.NoFileExists(t, path)
	}
}

func TestRecallFile(t *testing.T) {
	first, again := writeRecall(t, Recall{Seed: 8}), writeRecall(t, Recall{Seed: 8})
	bytes := func(path string) []byte {
		all, err := os.ReadFile(path)
		require.NoError(t, err)
		return all
	}
	require.Equal(t, bytes(first), bytes(again))
	require.NotEqual(t, bytes(first), bytes(writeRecall(t, Recall{Seed: 9})))

	model := decode(t, first)
	kv, s := model.KV(), Recall{}.Shape()
	require.Equal(t, "qwen3", kv.Architecture())
	require.EqualValues(t, 131072, kv.ContextLength())
	require.EqualValues(t, s.Parameters(), kv.ParameterCount())
	require.EqualValues(t, 1024, s.KVBytesPerToken())
	require.True(t, model.SupportsFlashAttention())
	require.NoError(t, s.Validate())
}
