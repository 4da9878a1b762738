package testmodel

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// RecallAnswerTokens is the number of tokens of an answer: the first tests the prompt, the
// others test that each generated token finds the next.
const RecallAnswerTokens = 4

// RecallNeedlesMax bounds the needles of a prompt, whose words may not occur elsewhere in the prompt.
const RecallNeedlesMax = 64

// RecallQuestion is a prompt and the answer of a Recall model.
type RecallQuestion struct {
	Prompt   string // for a raw request; ends in the key
	Answer   string // RecallAnswerTokens tokens
	Tokens   int    // tokens of Prompt
	Distance int    // tokens between the needle's key and the key at the end
}

// RecallPrompts hides one needle at each of the given positions of a text: a key, which is a
// word that occurs nowhere else, and its answer of more such words. RecallPrompts returns
// one question per needle. All prompts have the same text and end with the needle's key,
// `tokens` tokens in all. The model goes on with the answer.
//
// The first usable position is 1: the model takes the token at position 0, which has no predecessor, for its
// own successor. Equal arguments give equal words; with fewer tokens, the text is a prefix of the longer one.
func RecallPrompts(seed int64, tokens int, positions ...int) ([]RecallQuestion, error) {
	if len(positions) == 0 || len(positions) > RecallNeedlesMax {
		return nil, fmt.Errorf("making a recall prompt: %d needles, must be from 1 to %d", len(positions), RecallNeedlesMax)
	}
	const needleTokens = 1 + RecallAnswerTokens
	last, end := tokens-1-needleTokens, 1
	for _, position := range slices.Sorted(slices.Values(positions)) {
		if position < end || position > last {
			return nil, fmt.Errorf("making a recall prompt: a needle at %d in %d tokens, must be from %d to %d", position, tokens, end, last)
		}
		end = position + needleTokens
	}
	words := wholeWords(newVocabulary(recallVocab))
	random := rand.New(rand.NewPCG(uint64(seed), 1))
	random.Shuffle(len(words), func(i, j int) { words[i], words[j] = words[j], words[i] })

	needles, filler := words[:len(positions)*needleTokens], words[len(positions)*needleTokens:]
	text := make([]string, tokens-1)
	for i := range text {
		text[i] = filler[random.IntN(len(filler))]
	}
	for i, position := range positions {
		copy(text[position:], needles[i*needleTokens:][:needleTokens])
	}

	haystack := strings.Join(text, "")
	questions := make([]RecallQuestion, len(positions))
	for i, position := range positions {
		needle := text[position:][:needleTokens]
		questions[i] = RecallQuestion{
			Prompt: haystack + needle[0], Answer: strings.Join(needle[1:], ""),
			Tokens: tokens, Distance: tokens - 1 - position,
		}
	}
	return questions, nil
}
