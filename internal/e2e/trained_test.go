package e2e

import (
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
	"github.com/kvtier/kvtier/internal/testmodel/trained"
)

// Bounds that hold for any weights after some 4 million tokens of training.
const (
	trainedName     = "trained"
	wordsMin        = 0.7 // part of generated words that a reader of the prompts knows
	lookUpsMin      = 0.5 // part of look-ups answered right over some 100 tokens; guessing one of the table's words gives 1/8
	trainedTables   = 3
	trainedLines    = 8
	proseBefore     = 1200 // bytes before the table, more than a page of tokens
	proseAfter      = 300  // bytes between the table and the question
	continueTokens  = 48
	continuedPlaces = 4
)

// startTrained starts a server with the trained model.
func startTrained(t *testing.T) *server {
	t.Helper()
	s := start(t, "OLLAMA_FLASH_ATTENTION=0")
	path := trained.Path(t)
	require.NoError(t, s.CreateModel(s.context(), trainedName, path, trained.Modelfile(path)))
	return s
}

func (s *server) askTrained(prompt string, tokens int) answer {
	s.t.Helper()
	return s.ask(prompt, tokens, func(r *ollamatest.Request) { r.Model = trainedName })
}

// TestTrainedModelSpeaksWords: the model continues text that it never saw with words.
func TestTrainedModelSpeaksWords(t *testing.T) {
	s := startTrained(t)
	prose := trained.Prose()
	known := make(map[string]bool)
	for _, word := range append(testmodel.Words(), words(prose)...) {
		known[strings.ToLower(word)] = true
	}
	var generated []string
	right := 0
	for i := range continuedPlaces {
		text, _ := cutAtWord(prose[i*len(prose)/continuedPlaces:], proseBefore)
		generated = append(generated, words(s.askTrained(text, continueTokens).Text)...)
	}
	distinct := make(map[string]bool)
	for _, word := range generated {
		distinct[word] = true
		if known[strings.ToLower(word)] {
			right++
		}
	}
	require.Greater(t, len(distinct), 2*continuedPlaces, "it repeats itself: %q", generated)
	require.Greater(t, float64(right), wordsMin*float64(len(generated)), "%q", generated)
}

// words are the parts of a text that consist of letters.
func words(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) })
}

// cutAtWord cuts a text before the first word after n bytes.
func cutAtWord(text string, n int) (before, after string) {
	n += strings.IndexByte(text[n:], ' ')
	return text[:n], text[n:]
}

// TestTrainedModelLooksUp: the model answers questions about a table in its prompt, computed
// and from pages after kill -9.
func TestTrainedModelLooksUp(t *testing.T) {
	s := startTrained(t)
	before, rest := cutAtWord(trained.Prose(), proseBefore)
	after, _ := cutAtWord(rest, proseAfter)
	var prompts []string
	var lookUps []trained.LookUp
	for i := range trainedTables {
		table, questions := trained.Table(int64(i), trainedLines)
		for _, q := range questions {
			prompts, lookUps = append(prompts, before+table+after+q.Question), append(lookUps, q)
		}
	}
	ask := func() (right, restored int) {
		for i, prompt := range prompts {
			answer := s.askTrained(prompt, trained.AnswerTokens)
			restored += answer.restored
			if lookUps[i].Right(answer.Text) {
				right++
			}
		}
		return right, restored
	}
	computed, _ := ask()
	require.GreaterOrEqual(t, float64(computed), lookUpsMin*float64(len(prompts)))
	s.crash()
	fromPages, restored := ask()
	require.Positive(t, restored)
	require.GreaterOrEqual(t, fromPages, computed-1, "rounding may decide one")
}
