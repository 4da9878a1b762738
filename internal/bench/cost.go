package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/show"
)

// speed is tokens per second of one request, by the client's clock.
type speed struct{ prefill, decode float64 }

func speedOf(a lab.Answer) speed {
	return speed{
		prefill: float64(a.PromptEvalCount) / a.Wait().Seconds(),
		// the first token belongs to the prefill
		decode: float64(a.EvalCount-1) / (a.Total - a.TTFT).Seconds(),
	}
}

// measureCost runs pairs of requests whose prompts nobody has seen, one with the
// tier on and one with it off; the side that goes first alternates.
func (b *bench) measureCost(ctx context.Context) (err error) {
	r := &Cost{PromptTokens: b.settings.costPrompt, AnswerTokens: b.settings.costAnswer}
	b.report.Cost = r
	root := filepath.Join(b.dir, "pages")
	on, err := b.startOurs(ctx, root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, on.Close(), os.RemoveAll(root)) }()
	off, err := lab.Start(ctx, lab.Options{Model: b.model, NumCtx: b.numCtx})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, off.Close()) }()
	if _, err := b.askShort(ctx, off, b.prompt(shortPrompt)); err != nil {
		return err
	}

	for pair := range b.settings.pairs {
		step := b.steps.Step(fmt.Sprintf("cost, pair %d of %d", pair+1, b.settings.pairs))
		note, err := b.costPair(ctx, r, on, off, pair)
		step.End(note)
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) costPair(ctx context.Context, r *Cost, on, off *lab.Lab, pair int) (note string, err error) {
	prompt := b.prompt(r.PromptTokens)
	var with, without speed
	measureOn := func() error {
		with, err = b.costOn(ctx, r, on, prompt, pair)
		return err
	}
	measureOff := func() error {
		answer, err := b.ask(ctx, off, prompt, r.AnswerTokens)
		without = speedOf(answer)
		return err
	}
	order := []func() error{measureOff, measureOn}
	if pair%2 == 1 {
		order = []func() error{measureOn, measureOff}
	}
	for _, measure := range order {
		if err := measure(); err != nil {
			return "failed", err
		}
	}
	r.Prefill.addPair(without.prefill, with.prefill)
	r.Decode.addPair(without.decode, with.decode)
	return fmt.Sprintf("prefill %s, decode %s of the speed with the tier off",
		show.Percent(with.prefill/without.prefill), show.Percent(with.decode/without.decode)), nil
}

// costOn measures the side with the tier on and waits for its pages to be
// written, which would otherwise slow the other side down.
func (b *bench) costOn(ctx context.Context, r *Cost, on *lab.Lab, prompt string, pair int) (speed, error) {
	answer, err := b.ask(ctx, on, prompt, r.AnswerTokens)
	if err != nil {
		return speed{}, err
	}
	if answer.Restored.Tokens != 0 {
		return speed{}, fmt.Errorf("%d tokens were restored for a prompt that was never seen", answer.Restored.Tokens)
	}
	return speedOf(answer), on.Settle(ctx, (pair+1)*lab.PagesOf(r.PromptTokens))
}
