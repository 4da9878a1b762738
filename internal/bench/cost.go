package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/show"
)

// decodesPerPrefill is the number of pairs of answers measured per pair of prompts: single
// answers differ by ten percent.
const decodesPerPrefill = 4

// costRun is a running benchmark of both sides.
type costRun struct {
	*bench
	on, off *lab.Lab
	pages   int // pages that the side with the tier on must have written by now
	pairs   int // pairs measured so far
}

// prefillSpeed is tokens per second, by the client's clock.
func prefillSpeed(a lab.Answer) float64 {
	return float64(a.PromptEvalCount) / a.Wait().Seconds()
}

// decodeSpeed is tokens per second after the first, which belongs to the prefill.
func decodeSpeed(a lab.Answer) float64 {
	return float64(a.EvalCount-1) / (a.Total - a.TTFT).Seconds()
}

// measureCost runs pairs of requests with new prompts, one with the tier on and one with the
// tier off. The side that goes first alternates.
//
// Decoding leaves one core free. With compute threads on all cores, each wake-up of the
// server or of the client would stop one of them and make the others wait: the times of
// equal answers would differ by a factor of two.
func (b *bench) measureCost(ctx context.Context) error {
	r := &Cost{
		PromptTokens: b.settings.costPrompt, DecodePrompt: decodePrompt, AnswerTokens: b.settings.costAnswer,
		DecodeThreads: max(1, runtime.NumCPU()-1),
	}
	b.report.Cost = r
	err := b.compareSpeed(ctx, "prefill", 0, b.settings.pairs, &r.Prefill, func(c *costRun) error {
		return c.pair(ctx, &r.Prefill, r.PromptTokens, 1, prefillSpeed)
	})
	if err != nil {
		return err
	}
	return b.compareSpeed(ctx, "decode", r.DecodeThreads, b.settings.pairs*decodesPerPrefill, &r.Decode, func(c *costRun) error {
		return c.pair(ctx, &r.Decode, r.DecodePrompt, r.AnswerTokens, decodeSpeed)
	})
}

// pairsPerStart is the number of pairs measured before both sides are started again. The
// placement of a process's memory makes the process a few percent quicker or slower than an
// equal one while it runs: turns within one pair of processes do not average that out.
const pairsPerStart = 4

// compareSpeed measures pairs, on new processes every pairsPerStart.
func (b *bench) compareSpeed(ctx context.Context, what string, threads, pairs int, result *SideBySide, measure func(*costRun) error) error {
	step := b.steps.Step(fmt.Sprintf("cost, %s, %d pairs", what, pairs))
	for done := 0; done < pairs; done += pairsPerStart {
		if err := b.comparePairs(ctx, threads, min(pairsPerStart, pairs-done), measure); err != nil {
			step.End("", err)
			return err
		}
	}
	step.End(fmt.Sprintf("%s of the speed with the tier off", show.Percent(result.Ratio.Median)), nil)
	return nil
}

// comparePairs starts both sides and measures pairs.
func (b *bench) comparePairs(ctx context.Context, threads, pairs int, measure func(*costRun) error) (err error) {
	root := filepath.Join(b.dir, "pages")
	on, err := b.startOurs(ctx, root, threads)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, on.Close(), os.RemoveAll(root)) }()
	off, err := b.start(ctx, lab.Options{Model: b.model, NumCtx: b.numCtx, Threads: threads})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, off.Close()) }()
	if _, err := b.askShort(ctx, off, b.prompt(shortPrompt)); err != nil {
		return err
	}
	c := &costRun{bench: b, on: on, off: off}
	for range pairs {
		if err := measure(c); err != nil {
			return err
		}
	}
	return nil
}

// pair measures both sides with the same prompt.
func (c *costRun) pair(ctx context.Context, into *SideBySide, tokens, answer int, speed func(lab.Answer) float64) error {
	prompt := c.prompt(tokens)
	var with, without float64
	order := []func() error{
		func() error {
			a, err := c.ask(ctx, c.off, prompt, answer)
			without = speed(a)
			return err
		},
		func() error {
			a, err := c.askOn(ctx, prompt, tokens, answer)
			with = speed(a)
			return err
		},
	}
	if c.pairs%2 == 1 {
		slices.Reverse(order)
	}
	c.pairs++
	for _, measure := range order {
		if err := measure(); err != nil {
			return err
		}
	}
	into.addPair(without, with)
	return nil
}

// askOn asks the side with the tier on and waits until its pages are written: the writes
// would slow down the other side.
func (c *costRun) askOn(ctx context.Context, prompt string, tokens, answer int) (lab.Answer, error) {
	a, err := c.ask(ctx, c.on, prompt, answer)
	if err != nil {
		return a, err
	}
	if a.Restored.Tokens >= lab.PageTokens {
		return a, fmt.Errorf("%d tokens were restored for a prompt that was never seen", a.Restored.Tokens)
	}
	// full pages only; the last token of an answer is never computed
	c.pages += (tokens + answer - 1) / lab.PageTokens
	return a, c.on.Settle(ctx, c.pages)
}
