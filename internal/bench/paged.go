package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
)

// Paged is speed in tokens per second with paged attention.
type Paged struct {
	UsedTokens   int                `json:"used_tokens"` // used tokens at each capacity
	AnswerTokens int                `json:"answer_tokens"`
	PromptTokens int                `json:"prompt_tokens"` // of the comparison with stock attention
	Threads      int                `json:"threads"`
	Capacities   []Capacity         `json:"capacities"`
	Prefill      measure.SideBySide `json:"prefill" unit:"/s"` // off: stock attention of the same build
	Decode       measure.SideBySide `json:"decode" unit:"/s"`
}

// Capacity is one context length.
type Capacity struct {
	NumCtx int            `json:"num_ctx"`
	Decode measure.Series `json:"decode" unit:"/s"`
}

// Sizes of the measurement of paged attention, in tokens.
const (
	pagedUsed   = 1024 // tokens in a context of any capacity
	pagedAnswer = 128
	pagedPrompt = 8192 // prompt of the comparison with stock attention
)

// pagedCapacities are context lengths, of which only pagedUsed tokens are used.
var pagedCapacities = []int{pagedUsed + 2*pagedAnswer, 32 << 10, 256 << 10}

// measurePaged shows that the cost of a token does not depend on the context's capacity, and
// measures the cost or gain of paged attention where stock attention would be enough.
func measurePaged(ctx context.Context, r *rig) (any, error) {
	t := &Paged{UsedTokens: pagedUsed, AnswerTokens: pagedAnswer, PromptTokens: pagedPrompt, Threads: threadsButOne()}
	if r.quick {
		t.PromptTokens, t.AnswerTokens = quickTokens, quickAnswer
	}
	for _, numCtx := range pagedCapacities {
		t.Capacities = append(t.Capacities, Capacity{NumCtx: numCtx})
	}
	rounds := r.pairs * decodesPerPrefill
	if err := r.Step(fmt.Sprintf("paged, %d capacities, %d rounds", len(t.Capacities), rounds), func() (string, error) {
		err := t.compareCapacities(ctx, r, r.prompt(pagedUsed), rounds, nil)
		first, last := t.Capacities[0], t.Capacities[len(t.Capacities)-1]
		return fmt.Sprintf("context %s decodes at %s of the speed of context %s",
			show.Count(last.NumCtx), show.Percent(last.Decode.Median/first.Decode.Median), show.Count(first.NumCtx)), err
	}); err != nil {
		return nil, err
	}
	err := r.Step(fmt.Sprintf("paged, against stock attention, %d pairs", r.repetitions), func() (string, error) {
		for i := range r.repetitions {
			if err := t.compareStock(ctx, r, i); err != nil {
				return "", err
			}
		}
		return fmt.Sprintf("prefill %.2f×, decode %.2f× of stock", t.Prefill.Ratio.Median, t.Decode.Ratio.Median), nil
	})
	return t, err
}

// servePaged runs a server with paged attention on, or off.
func servePaged(ctx context.Context, r *rig, on bool, numCtx, threads int, use func(*lab.Lab) error) error {
	env := []string{"OLLAMA_FLASH_ATTENTION=1"}
	if on {
		env = append(env, "OLLAMA_PAGED_ATTN=1", "OLLAMA_PAGED_SPILL_DIR="+filepath.Join(r.dir, "spill"))
	}
	return r.serve(ctx, lab.Options{NumCtx: numCtx, Threads: threads, Env: env}, use)
}

// compareCapacities starts a server of each capacity and measures them in turns. labs are those that
// run already.
func (t *Paged) compareCapacities(ctx context.Context, r *rig, prompt string, rounds int, labs []*lab.Lab) error {
	if len(labs) < len(t.Capacities) {
		return servePaged(ctx, r, true, t.Capacities[len(labs)].NumCtx, t.Threads, func(l *lab.Lab) error {
			if _, err := r.ask(ctx, l, prompt, 2); err != nil { // the slot holds it from now on
				return err
			}
			return t.compareCapacities(ctx, r, prompt, rounds, append(labs, l))
		})
	}
	var sides []func() error
	for i, l := range labs {
		sides = append(sides, func() error {
			a, err := r.ask(ctx, l, prompt, t.AnswerTokens)
			if err == nil {
				t.Capacities[i].Decode.Add(decodeSpeed(a))
			}
			return err
		})
	}
	for round := range rounds {
		if err := measure.InTurns(round, sides...); err != nil {
			return err
		}
	}
	return nil
}

// compareStock asks fresh servers: equal processes differ by a few percent while they run.
func (t *Paged) compareStock(ctx context.Context, r *rig, turn int) error {
	prompt := r.prompt(t.PromptTokens)
	side := func(on bool) func() (lab.Answer, error) {
		return func() (a lab.Answer, err error) {
			err = servePaged(ctx, r, on, t.PromptTokens+2*t.AnswerTokens, t.Threads, func(l *lab.Lab) (err error) {
				if err = r.load(ctx, l); err == nil {
					a, err = r.ask(ctx, l, prompt, t.AnswerTokens)
				}
				return err
			})
			return a, err
		}
	}
	off, on, err := measure.Pair(turn, side(false), side(true))
	if err != nil {
		return err
	}
	t.Prefill.Add(prefillSpeed(off), prefillSpeed(on))
	t.Decode.Add(decodeSpeed(off), decodeSpeed(on))
	return nil
}
