package trained

import (
	_ "embed"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvtier/kvtier/internal/testmodel"
)

//go:embed trained.gguf
var file []byte

//go:embed heldout.txt
var heldOut string

// ContextTokens is the longest context of the training.
const ContextTokens = 4608

// Write writes the model's file into a folder, and returns the file's path.
func Write(dir string) (string, error) {
	path := filepath.Join(dir, "trained.gguf")
	return path, os.WriteFile(path, file, 0o644)
}

// Path writes the model's file for the length of a test, and returns the file's path.
func Path(t testing.TB) string {
	t.Helper()
	path, err := Write(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Modelfile returns an Ollama Modelfile for the file at path. The template passes a prompt
// through, and the context is that of the training.
func Modelfile(path string) string {
	return fmt.Sprintf("FROM %s\nTEMPLATE \"{{ .Prompt }}\"\nPARAMETER num_ctx %d\n", path, ContextTokens)
}

// Prose is some 6,000 tokens of text that is no part of the training text: heldout.txt without its table.
func Prose() string {
	_, prose, _ := strings.Cut(heldOut, "\n\n")
	return strings.TrimLeft(prose, "\n")
}

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
// text, and a look-up for each line. No word is in two places. There may be up to 24 lines, as in the training,
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
