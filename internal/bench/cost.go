package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
)

// Cost is speed in tokens per second with the tier on and off.
type Cost struct {
	PromptTokens  int                `json:"prompt_tokens"`
	DecodePrompt  int                `json:"decode_prompt_tokens"` // prompt of the requests whose decode speed is measured
	AnswerTokens  int                `json:"answer_tokens"`
	DecodeThreads int                `json:"decode_threads"` // prefill uses Ollama's own choice
	Prefill       measure.SideBySide `json:"prefill" unit:"/s"`
	Decode        measure.SideBySide `json:"decode" unit:"/s"`
}

const (
	// decodesPerPrefill is the number of pairs of answers measured per pair of prompts: single
	// answers differ by ten percent.
	decodesPerPrefill = 4
	// pairsPerStart is the number of pairs measured before both sides are started again. The
	// placement of a process's memory makes the process a few percent quicker or slower than an
	// equal one while it runs: turns within one pair of processes do not average that out.
	pairsPerStart = 4
)

// prefillSpeed is tokens per second, by the client's clock.
func prefillSpeed(a lab.Answer) float64 { return float64(a.PromptEvalCount) / a.Wait().Seconds() }

// decodeSpeed is tokens per second after the first, which belongs to the prefill.
func decodeSpeed(a lab.Answer) float64 {
	return float64(a.EvalCount-1) / (a.Total - a.TTFT).Seconds()
}

// threadsButOne leaves one core to the server and to the measuring client. With compute threads on all
// cores, each wake-up of these would stop a thread and make the others wait: the times of equal
// answers would differ by a factor of two.
func threadsButOne() int { return max(1, runtime.NumCPU()-1) }

// measureCost runs pairs of requests with new prompts, one with the tier on and one with the tier off.
func measureCost(ctx context.Context, r *rig) (any, error) {
	c := &Cost{PromptTokens: r.costPrompt, DecodePrompt: 64, AnswerTokens: r.costAnswer, DecodeThreads: threadsButOne()}
	for _, kind := range []costKind{
		{"prefill", c.PromptTokens, 1, 0, r.pairs, prefillSpeed, &c.Prefill},
		{"decode", c.DecodePrompt, c.AnswerTokens, c.DecodeThreads, r.pairs * decodesPerPrefill, decodeSpeed, &c.Decode},
	} {
		err := r.Step(fmt.Sprintf("cost, %s, %d pairs", kind.name, kind.pairs), func() (string, error) {
			for done := 0; done < kind.pairs; done += pairsPerStart {
				if err := kind.measure(ctx, r, min(pairsPerStart, kind.pairs-done)); err != nil {
					return "", err
				}
			}
			return show.Percent(kind.into.Ratio.Median) + " of the speed with the tier off", nil
		})
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// costKind is a kind of request whose speed is measured.
type costKind struct {
	name                           string
	prompt, answer, threads, pairs int
	speed                          func(lab.Answer) float64
	into                           *measure.SideBySide
}

// measure starts both sides and measures pairs.
func (k *costKind) measure(ctx context.Context, r *rig, pairs int) error {
	o := lab.Options{Threads: k.threads}
	return r.ours(ctx, o, func(on *lab.Lab, _ string) error {
		return r.serve(ctx, o, func(off *lab.Lab) error {
			if err := r.load(ctx, off); err != nil {
				return err
			}
			for pair := range pairs {
				prompt := r.prompt(k.prompt)
				if err := k.into.Measure(
					func() (float64, error) { a, err := r.ask(ctx, off, prompt, k.answer); return k.speed(a), err },
					func() (float64, error) { return k.askOn(ctx, r, on, prompt, pair+1) },
				); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// askOn asks the side with the tier on and waits until its pages, of so many requests, are written: the
// writes would slow down the other side.
func (k *costKind) askOn(ctx context.Context, r *rig, on *lab.Lab, prompt string, requests int) (float64, error) {
	a, err := r.ask(ctx, on, prompt, k.answer)
	if err != nil {
		return 0, err
	}
	if a.Restored.Tokens >= lab.PageTokens {
		return 0, fmt.Errorf("%d tokens were restored for a prompt that was never seen", a.Restored.Tokens)
	}
	// full pages only; the last token of an answer is never computed
	return k.speed(a), on.Settle(ctx, requests*((k.prompt+k.answer-1)/lab.PageTokens))
}
