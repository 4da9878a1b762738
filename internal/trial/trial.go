package trial

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/docs"
)

const (
	windowMax    = 8192 // tokens of the context
	windowRest   = 512  // for the template, the question and the answer
	tokenBytes   = 2    // of text, at least, for the tokenizers that people use
	answerTokens = 48
)

// Names of what is asked.
const (
	Cold     = "cold"
	Slot     = "again, in the same slot"
	Unloaded = "after the model was unloaded"
)

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

// Restored reports whether most of the prompt was not computed again after the unload.
func (r Result) Restored() bool {
	last := r.Rows[len(r.Rows)-1]
	if last.Reused != nil {
		return 2**last.Reused > last.Tokens
	}
	return 2*last.First < r.Rows[0].First
}

// Loaded returns the models that Ollama holds in memory: a trial would unload them, or make room.
func Loaded(ctx context.Context, c Client) ([]string, error) { return c.models(ctx, "/api/ps") }

// Run asks a model, "" for the smallest one that Ollama has, and leaves it unloaded. step is called around
// each answer.
func Run(ctx context.Context, c Client, model string, step func(name string, do func() error) error) (r Result, err error) {
	if r.Model = model; model == "" {
		if r.Model, err = c.smallest(ctx); err != nil {
			return r, err
		}
	}
	m, err := c.show(ctx, r.Model)
	if err != nil {
		return r, err
	}
	window := min(windowMax, cmp.Or(m.context, windowMax))
	question := newQuestion(window)
	for _, situation := range []string{Cold, Slot, Unloaded} {
		err := step(situation, func() error {
			switch situation {
			case Cold: // what is read and compiled for the first answer is no prompt
				if _, err := c.ask(ctx, r.Model, "Hello!", window, 1); err != nil {
					return err
				}
			case Unloaded:
				if err := c.unload(ctx, r.Model); err != nil {
					return err
				}
			}
			a, err := c.ask(ctx, r.Model, question, window, answerTokens)
			if err != nil {
				return err
			}
			if situation == Cold {
				r.Said = a.text
			}
			// The cold prompt is computed in other batches than the others, so rounding may differ.
			a.Same = slices.ContainsFunc(r.Rows, func(before Row) bool { return before.text == a.text })
			r.Rows = append(r.Rows, Row{situation, a})
			return nil
		})
		if err != nil {
			return r, err
		}
	}
	return r, c.unload(ctx, r.Model)
}

// newQuestion is one that nobody has asked before, about a long text.
func newQuestion(window int) string {
	text := docs.Durability
	text = text[:min(len(text), max(0, window-windowRest)*tokenBytes)]
	return fmt.Sprintf("Note %s.\n\n%s\n\nIn two sentences: what does this text promise?", rand.Text()[:8], strings.ToValidUTF8(text, ""))
}
