package testmodel

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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

func TestRecallPromptsGrow(t *testing.T) {
	short, err := RecallPrompts(2, 100, 30, 40)
	require.NoError(t, err)
	long, err := RecallPrompts(2, 200, 30, 40)
	require.NoError(t, err)
	text := short[0].Prompt[:strings.LastIndex(short[0].Prompt, " ")]
	require.True(t, strings.HasPrefix(long[0].Prompt, text))
	require.Equal(t, short[1].Answer, long[1].Answer)
	other, err := RecallPrompts(3, 100, 30, 40)
	require.NoError(t, err)
	require.NotEqual(t, short, other)
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
		{"needle at 14 overlaps", 100, []int{14, 10}},
		{"needle at 10 overlaps", 100, []int{10, 10}},
	} {
		_, err := RecallPrompts(1, test.tokens, test.positions...)
		require.ErrorContains(t, err, test.want)
	}
}
