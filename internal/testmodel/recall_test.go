package testmodel

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func writeRecall(t *testing.T, r Recall) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "recall.gguf")
	require.NoError(t, WriteRecall(path, r))
	return path
}

// TestCodes: any two tokens differ in both codes.
func TestCodes(t *testing.T) {
	book := newCodebook()
	for _, test := range []struct {
		codes          []code
		length, dotMax int
	}{
		{book.keys, keyCodeLen, keyCodeLen / 4},
		{book.values, valueCodeLen, valueCodeLen / 8},
	} {
		require.Len(t, test.codes, recallVocab)
		sums := make([]int, test.length)
		for i, a := range test.codes {
			require.Len(t, a, test.length)
			for j, b := range test.codes[:i] {
				dot := 0
				for x := range a {
					dot += int(a[x]) * int(b[x])
				}
				if dot > test.dotMax {
					require.LessOrEqual(t, dot, test.dotMax, "tokens %d and %d", i, j)
				}
			}
			for x, sign := range a {
				require.EqualValues(t, 1, sign*sign)
				sums[x] += int(sign)
			}
		}
		// An f16 sum of values stays small only if +1 and -1 are equally frequent.
		for _, sum := range sums {
			require.InDelta(t, 0, sum, recallVocab/10)
		}
	}
}

func TestRecallPrompts(t *testing.T) {
	bpe := readTokenizer(t, decode(t, writeRecall(t, Recall{})).KV())
	encode := func(text string) []int32 {
		ids, err := bpe.Encode(text, true)
		require.NoError(t, err)
		return ids
	}
	positions := []int{994, 1, 6, 500}
	questions, err := RecallPrompts(1, 1000, positions...)
	require.NoError(t, err)
	require.Len(t, questions, len(positions))
	for i, question := range questions {
		tokens := encode(question.Prompt)
		require.Len(t, tokens, 1000)
		require.Equal(t, 1000, question.Tokens)
		key, at := tokens[999], positions[i]
		require.Equal(t, 999-at, question.Distance)
		require.Equal(t, key, tokens[at])
		require.Equal(t, encode(question.Answer), tokens[at+1:][:RecallAnswerTokens])
		count := make(map[int32]int)
		for _, token := range tokens[:999] {
			count[token]++
		}
		for _, token := range tokens[at:][:1+RecallAnswerTokens] {
			require.Equal(t, 1, count[token], "a needle's tokens occur nowhere else")
		}
		require.Equal(t, tokens[:999], encode(questions[0].Prompt)[:999], "the text is shared")
	}
}

func TestRecallPromptsRefuse(t *testing.T) {
	for _, test := range []struct {
		want      string
		tokens    int
		positions []int
	}{
		{"0 needles", 100, nil},
		{"65 needles", 1000, make([]int, RecallNeedlesMax+1)},
		{"a needle at 0", 100, []int{0}},
		{"a needle at 95 in 100 tokens, must be from 1 to 94", 100, []int{95}},
		{"a needle at 1 in 0 tokens", 0, []int{1}},
		{"a needle at 14 in 100 tokens, must be from 15 to 94", 100, []int{14, 10}},
		{"a needle at 10 in 100 tokens, must be from 15 to 94", 100, []int{10, 10}},
	} {
		_, err := RecallPrompts(1, test.tokens, test.positions...)
		require.ErrorContains(t, err, test.want)
	}
}
