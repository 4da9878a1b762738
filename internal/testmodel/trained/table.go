package trained

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/kvtier/kvtier/internal/testmodel"
)

// AnswerTokens is enough for the answer to a look-up, which is one word.
const AnswerTokens = 6

// LookUp is a question about a line of a table.
type LookUp struct {
	Question string // ends a raw prompt that holds the table
	Answer   string
}

// Right reports whether a generated text begins with the answer.
func (l LookUp) Right(text string) bool {
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimSpace(line) == l.Answer
}

// Table returns lines of "word = word", under the heading of such tables in the training
// text, and a look-up for each line. No word is in two places. Lines are from 1 to TableMax,
// and equal arguments give equal tables.
func Table(seed int64, lines int) (table string, lookUps []LookUp) {
	words := testmodel.Words()
	random := rand.New(rand.NewPCG(uint64(seed), 2))
	random.Shuffle(len(words), func(i, j int) { words[i], words[j] = words[j], words[i] })
	var text strings.Builder
	text.WriteString("\n\nSettings:\n")
	for i := range lines {
		name, value := words[2*i], words[2*i+1]
		fmt.Fprintf(&text, " %s = %s\n", name, value)
		lookUps = append(lookUps, LookUp{Question: "\n\n " + name + " =", Answer: value})
	}
	random.Shuffle(len(lookUps), func(i, j int) { lookUps[i], lookUps[j] = lookUps[j], lookUps[i] })
	return text.String(), lookUps
}

// TableMax is the largest number of lines in the tables of the training text.
const TableMax = 24
