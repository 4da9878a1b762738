package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/show"
)

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
func (b *bench) measurePaged(ctx context.Context) error {
	r := &Paged{
		UsedTokens: pagedUsed, AnswerTokens: pagedAnswer, PromptTokens: pagedPrompt,
		Threads: max(1, runtime.NumCPU()-1),
	}
	if b.settings.quick {
		r.PromptTokens, r.AnswerTokens = quickTokens, quickAnswer
	}
	b.report.Paged = r
	if err := b.pagedCapacity(ctx, r); err != nil {
		return err
	}
	return b.pagedAgainstStock(ctx, r)
}

// startPaged starts a server with paged attention on, or off.
func (b *bench) startPaged(ctx context.Context, on bool, numCtx, threads int) (*lab.Lab, error) {
	env := []string{"OLLAMA_FLASH_ATTENTION=1"}
	if on {
		env = append(env, "OLLAMA_PAGED_ATTN=1", "OLLAMA_PAGED_SPILL_DIR="+filepath.Join(b.dir, "spill"))
	}
	return b.start(ctx, lab.Options{Model: b.model, NumCtx: numCtx, Threads: threads, Env: env})
}

func (b *bench) pagedCapacity(ctx context.Context, r *Paged) (err error) {
	rounds := b.settings.pairs * decodesPerPrefill
	step := b.steps.Step(fmt.Sprintf("paged, %d capacities, %d rounds", len(pagedCapacities), rounds))
	defer func() {
		if err != nil {
			step.End("", err)
		}
	}()
	prompt := b.prompt(pagedUsed)
	var labs []*lab.Lab
	defer func() {
		for _, l := range labs {
			err = errors.Join(err, l.Close())
		}
	}()
	for _, numCtx := range pagedCapacities {
		l, err := b.startPaged(ctx, true, numCtx, r.Threads)
		if err != nil {
			return err
		}
		labs = append(labs, l)
		if _, err := b.ask(ctx, l, prompt, 2); err != nil { // the slot holds it from now on
			return err
		}
		r.Capacities = append(r.Capacities, Capacity{NumCtx: numCtx})
		if b.report.Versions.Kvtier, err = l.Version(ctx); err != nil {
			return err
		}
	}
	order := make([]int, len(labs))
	for i := range order {
		order[i] = i
	}
	for range rounds {
		for _, i := range order {
			a, err := b.ask(ctx, labs[i], prompt, r.AnswerTokens)
			if err != nil {
				return err
			}
			r.Capacities[i].Decode.Add(decodeSpeed(a))
		}
		order = append(order[1:], order[0]) // each capacity is first equally often
	}
	last := r.Capacities[len(r.Capacities)-1]
	step.End(fmt.Sprintf("context %s decodes at %s of the speed of context %s",
		show.Count(last.NumCtx), show.Percent(last.Decode.Median/r.Capacities[0].Decode.Median), show.Count(r.Capacities[0].NumCtx)), nil)
	return nil
}

func (b *bench) pagedAgainstStock(ctx context.Context, r *Paged) error {
	pairs := b.settings.repetitions
	step := b.steps.Step(fmt.Sprintf("paged, against stock attention, %d pairs", pairs))
	for i := range pairs {
		sides := []bool{false, true}
		if i%2 == 1 {
			slices.Reverse(sides)
		}
		prompt := b.prompt(r.PromptTokens)
		var answers [2]lab.Answer // off, on
		for _, on := range sides {
			a, err := b.askFresh(ctx, on, prompt, r)
			if err != nil {
				step.End("", err)
				return err
			}
			side := 0
			if on {
				side = 1
			}
			answers[side] = a
		}
		r.Prefill.addPair(prefillSpeed(answers[0]), prefillSpeed(answers[1]))
		r.Decode.addPair(decodeSpeed(answers[0]), decodeSpeed(answers[1]))
	}
	step.End(fmt.Sprintf("prefill %.2f×, decode %.2f× of stock", r.Prefill.Ratio.Median, r.Decode.Ratio.Median), nil)
	return nil
}

// askFresh asks a fresh server: equal processes differ by a few percent while they run.
func (b *bench) askFresh(ctx context.Context, on bool, prompt string, r *Paged) (a lab.Answer, err error) {
	l, err := b.startPaged(ctx, on, r.PromptTokens+2*r.AnswerTokens, r.Threads)
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if _, err := b.askShort(ctx, l, b.prompt(shortPrompt)); err != nil {
		return a, err
	}
	return b.ask(ctx, l, prompt, r.AnswerTokens)
}
