package install

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Plan lists the steps of an installation or a removal.
type Plan struct {
	Ollama Ollama
	Steps  []Step
	Hints  []string // sentences for the person who decides about the plan

	cannot error        // the reason why this user cannot carry the plan out
	fresh  func() error // says whether files have changed since the plan was made
	// undo plans to take the steps back, if the last one fails. Its hints name the pages that stay.
	undo func(back *Plan) error
}

// Step is a part of a plan.
type Step struct {
	Text  string `json:"step"`            // an order, such as "write FILE"
	Shows string `json:"shows,omitempty"` // the content of the file that it writes, or ""
	do    func(context.Context) error
}

// add adds a step.
func (p *Plan) add(do func(context.Context) error, format string, args ...any) {
	p.Steps = append(p.Steps, Step{Text: fmt.Sprintf(format, args...), do: do})
}

// hint adds a sentence.
func (p *Plan) hint(format string, args ...any) {
	p.Hints = append(p.Hints, fmt.Sprintf(format, args...))
}

// Cannot returns the reason why this user cannot carry the plan out, or nil.
func (p *Plan) Cannot() error {
	if len(p.Steps) == 0 {
		return nil
	}
	return p.cannot
}

// Do carries the plan out. done is called after each step. If a check fails that comes after
// the changes, these are taken back.
func (p *Plan) Do(ctx context.Context, done func(Step)) error {
	if err := p.Cannot(); err != nil {
		return err
	}
	if p.fresh != nil {
		if err := p.fresh(); err != nil {
			return err
		}
	}
	for _, step := range p.Steps {
		err := step.do(ctx)
		var bad *badCheck
		if errors.As(err, &bad) && p.undo != nil {
			back := &Plan{Ollama: p.Ollama}
			undone := p.undo(back)
			if undone == nil {
				undone = back.Do(context.WithoutCancel(ctx), func(Step) {})
			}
			if undone != nil {
				return fmt.Errorf("%w; taking it back failed, too (%w); run kvtier ollama remove", err, undone)
			}
			return fmt.Errorf("%w; %s", err, strings.Join(append([]string{"Ollama runs its own llama-server again"}, back.Hints...), ". "))
		}
		if err != nil {
			return fmt.Errorf("%s: %w; run the same command again to continue, or kvtier ollama remove to go back", step.Text, err)
		}
		done(step)
	}
	return nil
}

// badCheck is the failure of a check: the steps before it were carried out.
type badCheck struct{ error }

func (e *badCheck) Unwrap() error { return e.error }
