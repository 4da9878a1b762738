package main

import (
	"context"
	"fmt"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
)

// TTFT is time to first token, model load taken off.
type TTFT struct {
	Points []Point `json:"points"`
	// Fixed is the time of a prompt of a few tokens that the slot holds: HTTP, scheduling,
	// sampling, streaming. FixedBatch is the time of its batch, a part of Fixed.
	Fixed      measure.Series `json:"fixed" unit:"s"`
	FixedBatch measure.Series `json:"fixed_batch" unit:"s"`
	HTTP       float64        `json:"http_scheduling_sampling" unit:"s"` // Fixed without the batch
}

// Point is one prompt length. Times are in seconds.
type Point struct {
	Tokens   int            `json:"tokens"`
	Stock    measure.Series `json:"stock" unit:"s"`
	Cold     measure.Series `json:"cold" unit:"s"`      // tier on, empty store
	SameSlot measure.Series `json:"same_slot" unit:"s"` // tier on, asked again
	Restored measure.Series `json:"restored" unit:"s"`  // after kill -9
	// RestoredUncached is Restored with an empty page cache; nil without the right to empty it.
	RestoredUncached *measure.Series `json:"restored_uncached,omitempty" unit:"s"`
	RestoredTokens   int             `json:"restored_tokens"`
	Speedup          float64         `json:"speedup"`      // stock over restored
	SpeedupCold      float64         `json:"speedup_cold"` // our own cold over restored

	// Parts of Restored: the restore itself, and the batch that computes the last token.
	Took  measure.Series `json:"restored_took" unit:"s"`
	Batch measure.Series `json:"restored_batch" unit:"s"`
	// Outside is the rest of Restored: HTTP, scheduling, tokenization, sampling.
	Outside measure.Series `json:"restored_outside" unit:"s"`
	// SameSlotBatch is the time of the batch without a restore, in a runner that has run
	// before.
	SameSlotBatch measure.Series `json:"same_slot_batch" unit:"s"`
	// PlainRead is a plain read of the same page files, from the page cache.
	PlainRead measure.Series `json:"plain_read" unit:"s"`

	// Carrying and tokenizing the prompt is the time outside of batches beyond that of a short
	// prompt, if the difference is more than noise.
	Carrying         float64 `json:"carrying_and_tokenizing" unit:"s"`
	SameSlotCarrying float64 `json:"same_slot_carrying_and_tokenizing" unit:"s"`
}

// ttftAnswer is the length of answers in tokens: enough to see that the answer after a restore is
// the same.
const ttftAnswer = 8

// measureTTFT measures all prompt lengths, once in each repetition.
func measureTTFT(ctx context.Context, r *rig) (any, error) {
	t := &TTFT{Points: make([]Point, len(r.sizes))}
	err := r.stock(ctx, lab.Options{}, func(stock *lab.Lab) error {
		for repetition := range r.repetitions {
			for i, tokens := range r.sizes {
				p := &t.Points[i]
				p.Tokens = tokens
				name := fmt.Sprintf("ttft, %s tokens, %d of %d", show.Count(tokens), repetition+1, r.repetitions)
				if err := r.Step(name, func() (string, error) {
					err := ttftOnce(ctx, r, stock, t, p)
					return fmt.Sprintf("stock %s, cold %s, restored %s", last(p.Stock), last(p.Cold), last(p.Restored)), err
				}); err != nil {
					return fmt.Errorf("measuring %d tokens: %w", tokens, err)
				}
			}
		}
		return nil
	})
	t.HTTP = t.Fixed.Median - t.FixedBatch.Median
	for i := range t.Points {
		p := &t.Points[i]
		p.Speedup = p.Stock.Median / p.Restored.Median
		p.SpeedupCold = p.Cold.Median / p.Restored.Median
		p.Carrying = max(0, p.Outside.Median-t.HTTP)
		p.SameSlotCarrying = max(0, p.SameSlot.Median-p.SameSlotBatch.Median-t.HTTP)
	}
	return t, err
}

// last is the latest time of a series, as text.
func last(s measure.Series) string {
	if len(s.Values) == 0 {
		return ""
	}
	return show.Number(s.Values[len(s.Values)-1], "s")
}

// ttftOnce runs one repetition of one prompt length.
func ttftOnce(ctx context.Context, r *rig, stock *lab.Lab, t *TTFT, p *Point) error {
	prompt := r.prompt(p.Tokens)
	answer, err := r.ask(ctx, stock, prompt, ttftAnswer)
	if err != nil {
		return err
	}
	p.Stock.AddSeconds(answer.Wait())
	return r.ours(ctx, lab.Options{}, func(ours *lab.Lab, root string) error {
		short := r.prompt(shortPrompt)
		if _, err := r.askShort(ctx, ours, short); err != nil {
			return err
		}
		held, err := r.askShort(ctx, ours, short)
		if err != nil {
			return err
		}
		t.Fixed.AddSeconds(held.Wait())
		t.FixedBatch.AddSeconds(held.PromptEvalDuration)
		return p.beforeAndAfter(ctx, r, ours, root, prompt)
	})
}

// beforeAndAfter asks a new prompt, asks it again in the same slot, and after kill -9.
func (p *Point) beforeAndAfter(ctx context.Context, r *rig, ours *lab.Lab, root, prompt string) error {
	cold, err := r.store(ctx, ours, prompt, p.Tokens, ttftAnswer)
	if err != nil {
		return err
	}
	if cold.Restored.Tokens != 0 {
		return fmt.Errorf("%d tokens were restored for a prompt that was never seen", cold.Restored.Tokens)
	}
	p.Cold.AddSeconds(cold.Wait())
	held, err := r.ask(ctx, ours, prompt, ttftAnswer)
	if err != nil {
		return err
	}
	p.SameSlot.AddSeconds(held.Wait())
	p.SameSlotBatch.AddSeconds(held.PromptEvalDuration)
	return p.after(ctx, r, ours, root, prompt, held)
}

// after kills, restarts and asks again: with a full page cache and, with the right to empty it, with
// an empty one.
func (p *Point) after(ctx context.Context, r *rig, ours *lab.Lab, root, prompt string, held lab.Answer) error {
	restored, err := r.killed(ctx, ours, prompt, held, func() error {
		pages, err := lab.Pages(root)
		if err != nil {
			return err
		}
		read, err := measure.ReadFiles(pages, 1, measure.ReadBuffer)
		p.PlainRead.AddSeconds(read.Took)
		return err
	})
	if err != nil {
		return err
	}
	p.RestoredTokens = restored.Restored.Tokens
	p.Restored.AddSeconds(restored.Wait())
	p.Took.AddSeconds(restored.Restored.Took)
	p.Batch.AddSeconds(restored.PromptEvalDuration - restored.Restored.Took)
	p.Outside.AddSeconds(restored.Wait() - restored.PromptEvalDuration)
	if !r.canDrop {
		return nil
	}
	if restored, err = r.killed(ctx, ours, prompt, held, measure.DropCaches); err != nil {
		return err
	}
	if p.RestoredUncached == nil {
		p.RestoredUncached = &measure.Series{}
	}
	p.RestoredUncached.AddSeconds(restored.Wait())
	return nil
}
