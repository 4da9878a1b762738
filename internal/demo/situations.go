package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/progress"
	"github.com/kvtier/kvtier/internal/testmodel/trained"
)

const (
	sampleBytes  = 2000 // bytes of text, to measure its tokens per byte
	sampleParts  = 8    // number of places that the sample is taken from
	sampleSpan   = 3    // about the bytes per token, to estimate the text of the prompt
	otherBytes   = 2000 // bytes of text of another chat
	contextSlack = 512  // tokens for the template, the question and a wrong estimate
	contextStep  = 1024
)

// demo is one run.
type demo struct {
	*lab.Lab
	settings settings
	script
	steps    *progress.Display
	answers  []lab.Answer // by situation
	computed int          // right look-ups before the first situation
	restored int          // right look-ups after the last one
}

// situation is an event of the slot before the prompt is sent again.
type situation struct {
	name    string
	prepare func(*demo, context.Context) error
	compare func(want, got lab.Answer) verdict // compares with the answer in the same slot
	stored  bool                               // the prompt must be restored from the store
}

// sameSlot is the index of the situation with which the others are compared.
const sameSlot = 1

var situations = []situation{
	{name: "cold", compare: compareText},
	{name: "same slot", compare: compareExact},
	{name: "after another chat took the slot", prepare: (*demo).anotherChat, compare: compareExact, stored: true},
	{name: "after the model was unloaded", prepare: (*demo).unload, compare: compareExact, stored: true},
	{name: "after kill -9", prepare: (*demo).kill, compare: compareExact, stored: true},
}

func (d *demo) anotherChat(ctx context.Context) error {
	_, err := d.Ask(ctx, lab.Question{Prompt: d.other, Raw: d.raw, Tokens: 1, Private: true})
	return err
}

func (d *demo) unload(ctx context.Context) error { return d.Unload(ctx, d.Model().Name) }

func (d *demo) kill(ctx context.Context) error {
	if err := d.KillServer(); err != nil {
		return err
	}
	return d.Restart(ctx)
}

// demonstrate runs all situations and prints their results.
func demonstrate(ctx context.Context, s settings, at place, stdout, stderr io.Writer) error {
	steps := progress.New(stderr, show.StepNames)
	d := &demo{settings: s, steps: steps}
	err := d.run(ctx, at, stderr)
	steps.Close()
	if err != nil {
		return err
	}
	r := newReport(d)
	if s.json {
		err = r.writeJSON(stdout)
	} else {
		r.writeTable(stdout)
	}
	return errors.Join(err, r.problem())
}

func (d *demo) run(ctx context.Context, at place, stderr io.Writer) (err error) {
	text, err := d.settings.readText(at.repository)
	if err != nil {
		return err
	}
	need := d.settings.tokens + d.settings.tokens/10 + d.settings.answer + contextSlack
	numCtx := (need + contextStep - 1) / contextStep * contextStep
	if d.Lab, err = start(ctx, d.settings, at, d.steps, stderr, lab.Options{NumCtx: numCtx}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if err := d.steps.Do("load the model and measure the text", func(*progress.Step) (string, error) { return "", d.measure(ctx, text) }); err != nil {
		return err
	}
	if d.computed, err = d.lookUp(ctx, "look-ups, computed"); err != nil {
		return err
	}
	if err := d.anotherChat(ctx); err != nil { // the cold run finds nothing in the slot
		return err
	}
	for _, s := range situations {
		if err := d.experience(ctx, s); err != nil {
			return err
		}
	}
	d.restored, err = d.lookUp(ctx, "look-ups after kill -9")
	return err
}

// lookUp asks all look-ups of the prompt, and counts right answers. Nothing of this is
// stored.
func (d *demo) lookUp(ctx context.Context, name string) (right int, err error) {
	if len(d.lookUps) == 0 {
		return 0, nil
	}
	err = d.steps.Do(name, func(*progress.Step) (string, error) {
		for _, l := range d.lookUps {
			answer, err := d.Ask(ctx, lab.Question{Prompt: d.text + l.Question, Raw: true, Tokens: trained.AnswerTokens, Private: true})
			if err != nil {
				return "", err
			}
			if l.Right(answer.Text) {
				right++
			}
		}
		return fmt.Sprintf("%d of %d right", right, len(d.lookUps)), nil
	})
	return right, err
}

// measure loads the model, counts the tokens of a sample of the text, and cuts the prompt to
// length. The sample is not stored.
func (d *demo) measure(ctx context.Context, text string) error {
	sample := sampleOf(text, d.settings.tokens*sampleSpan)
	if len(text) < sampleBytes {
		return fmt.Errorf("the text has only %d bytes; name a longer one with -text", len(text))
	}
	answer, err := d.Ask(ctx, lab.Question{Prompt: sample, Raw: d.settings.trained(), Tokens: 1, Private: true})
	if err != nil {
		return err
	}
	if reason := d.TierOff(); reason != "" {
		return fmt.Errorf("the KV tier is off for model %s: %s", d.Model().Name, reason)
	}
	bytes := d.settings.tokens * len(sample) / max(answer.PromptEvalCount, 1)
	if bytes+otherBytes > len(text) {
		return fmt.Errorf("the text has %d bytes, %d tokens need about %d; ask for fewer with -tokens, or name a longer text with -text",
			len(text), d.settings.tokens, bytes+otherBytes)
	}
	d.script = chat(text, bytes)
	if d.settings.trained() {
		d.script = withTable(text, bytes)
	}
	return nil
}

// sampleOf takes pieces from places all over the first span bytes of a text.
func sampleOf(text string, span int) string {
	span = min(span, len(text))
	var sample strings.Builder
	for part := range sampleParts {
		sample.WriteString(excerpt(text, part*span/sampleParts, sampleBytes/sampleParts))
	}
	return sample.String()
}

// experience puts the prompt into a situation and notes the answer.
func (d *demo) experience(ctx context.Context, s situation) error {
	return d.steps.Do(s.name, func(*progress.Step) (string, error) {
		if s.prepare != nil {
			if err := s.prepare(d, ctx); err != nil {
				return "", err
			}
		}
		answer, err := d.Ask(ctx, lab.Question{Prompt: d.prompt(), Raw: d.raw, Tokens: d.settings.answer, Logprobs: true})
		if err != nil {
			return "", err
		}
		d.answers = append(d.answers, answer)
		return show.Seconds(answer.Wait().Round(time.Microsecond)), nil
	})
}
