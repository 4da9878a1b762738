package trial

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kvtier/kvtier/docs"
)

const (
	windowMax    = 8192 // tokens of the context
	windowRest   = 512  // for the template, the question and the answer
	tokenBytes   = 2    // of text, at least, for the tokenizers that people use
	answerTokens = 48
	lineMax      = 1 << 20 // bytes of an event
)

// Names of what is asked.
const (
	Cold     = "cold"
	Slot     = "again, in the same slot"
	Unloaded = "after the model was unloaded"
	Killed   = "after llama-server was killed"
)

// Answer is one answer.
type Answer struct {
	Tokens int     `json:"prompt_tokens"`
	Reused *int    `json:"reused"`         // tokens that were not computed; null where Ollama does not say (before v0.34)
	First  float64 `json:"first_token_s"`  // without loading the model
	Same   bool    `json:"same_as_before"` // the text is that of an answer before
	text   string
	load   time.Duration
}

// read reads a stream of lines from a server, and measures. event returns the text of a line, and whether it
// is the last one.
func (a *Answer) read(body io.ReadCloser, server string, began time.Time, event func(line []byte) (said string, done bool, err error)) error {
	defer body.Close()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, lineMax)
	var first time.Duration
	for lines.Scan() {
		said, done, err := event(lines.Bytes())
		if err != nil {
			return fmt.Errorf("read the answer of %s: %w", server, err)
		}
		if first == 0 && (said != "" || done) {
			first = time.Since(began)
		}
		if a.text += said; done {
			a.First = max(0, first-a.load).Seconds()
			return nil
		}
	}
	return fmt.Errorf("the answer of %s broke off: %w", server, cmp.Or(lines.Err(), io.ErrUnexpectedEOF))
}

// Row is one answer of a trial.
type Row struct {
	Situation string `json:"situation"`
	Answer
}

// Result is a trial.
type Result struct {
	Model string `json:"model"`
	Said  string `json:"answer"`
	Rows  []Row  `json:"rows"`
}

// Restored reports whether most of the prompt was not computed again after the server forgot it.
func (r Result) Restored() bool {
	last := r.Rows[len(r.Rows)-1]
	if last.Reused != nil {
		return 2**last.Reused > last.Tokens
	}
	return 2*last.First < r.Rows[0].First
}

// Server is an [Ollama], or a llama-server [Alone].
type Server interface {
	model() (name string, window int) // window is the number of tokens of its context
	ask(ctx context.Context, question string, length int) (Answer, error)
	forget(ctx context.Context) error
	forgotten() string // names what is asked behind forget
}

// Run asks a server. step is called around each answer.
func Run(ctx context.Context, s Server, step func(name string, do func() error) error) (r Result, err error) {
	model, window := s.model()
	r.Model = model
	question := newQuestion(window)
	for _, situation := range []string{Cold, Slot, s.forgotten()} {
		err := step(situation, func() error {
			if situation == s.forgotten() {
				if err := s.forget(ctx); err != nil {
					return err
				}
			}
			if situation != Slot { // what is read and compiled for the first answer is no prompt
				if _, err := s.ask(ctx, "Hello!", 1); err != nil {
					return err
				}
			}
			a, err := s.ask(ctx, question, answerTokens)
			if err != nil {
				return err
			}
			if situation == Cold {
				r.Said = a.text
			}
			// Where another part of the prompt is computed, its batches are others, and rounding may differ.
			a.Same = slices.ContainsFunc(r.Rows, func(before Row) bool { return before.text == a.text })
			r.Rows = append(r.Rows, Row{situation, a})
			return nil
		})
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

// newQuestion is one that nobody has asked before, about a long text.
func newQuestion(window int) string {
	text := docs.Durability
	text = text[:min(len(text), max(0, window-windowRest)*tokenBytes)]
	return fmt.Sprintf("Note %s.\n\n%s\n\nIn two sentences: what does this text promise?", rand.Text()[:8], strings.ToValidUTF8(text, ""))
}
