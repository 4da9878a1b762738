package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
)

const (
	// ttftAnswer is the length of answers in tokens: enough to see that the answer after a
	// restore is the same.
	ttftAnswer = 8
	// shortPrompt is the length in tokens of a prompt that costs almost nothing to compute.
	shortPrompt = 8
)

// measureTTFT measures all prompt lengths, once in each repetition.
func (b *bench) measureTTFT(ctx context.Context) (err error) {
	r := &TTFT{Points: make([]Point, len(b.settings.sizes))}
	b.report.TTFT = r
	stock, err := b.startStock(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stock.Close()) }()
	for repetition := range b.settings.repetitions {
		for i, tokens := range b.settings.sizes {
			step := b.steps.Step(fmt.Sprintf("ttft, %s tokens, %d of %d", show.Count(tokens), repetition+1, b.settings.repetitions))
			note, err := b.ttftOnce(ctx, stock, r, &r.Points[i], tokens)
			step.End(note, err)
			if err != nil {
				return fmt.Errorf("measuring %d tokens: %w", tokens, err)
			}
		}
	}
	for i := range r.Points {
		p := &r.Points[i]
		p.Speedup = p.Stock.Median / p.Restored.Median
		p.SpeedupCold = p.Cold.Median / p.Restored.Median
	}
	return nil
}

// startStock starts the stock server and loads its model.
func (b *bench) startStock(ctx context.Context) (*lab.Lab, error) {
	options := lab.Options{Binary: b.settings.stock, Model: b.model, NumCtx: b.numCtx}
	b.report.Versions.StockIsPatched = options.Binary == ""
	stock, err := b.start(ctx, options)
	if err != nil {
		return nil, err
	}
	b.report.Versions.Stock, err = stock.Version(ctx)
	if b.report.Versions.Stock == unversioned {
		b.report.Versions.Stock = builtFrom(b.settings.stock)
	}
	if err == nil {
		_, err = b.askShort(ctx, stock, b.prompt(shortPrompt))
	}
	if err != nil {
		return nil, errors.Join(err, stock.Close())
	}
	return stock, nil
}

// ttftOnce runs one repetition of one prompt length.
func (b *bench) ttftOnce(ctx context.Context, stock *lab.Lab, r *TTFT, p *Point, tokens int) (note string, err error) {
	p.Tokens = tokens
	prompt := b.prompt(tokens)
	answer, err := b.ask(ctx, stock, prompt, ttftAnswer)
	if err != nil {
		return "", err
	}
	p.Stock.AddSeconds(answer.Wait())

	root := filepath.Join(b.dir, "pages")
	ours, err := b.startOurs(ctx, root, 0)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, ours.Close(), os.RemoveAll(root)) }()
	if err := b.measureFixed(ctx, ours, r); err != nil {
		return "", err
	}
	held, err := b.ttftBefore(ctx, ours, p, prompt, tokens)
	if err != nil {
		return "", err
	}
	if err := b.ttftAfter(ctx, ours, p, prompt, held, root); err != nil {
		return "", err
	}
	return fmt.Sprintf("stock %s, cold %s, restored %s", lastSeconds(p.Stock), lastSeconds(p.Cold), lastSeconds(p.Restored)), nil
}

// startOurs starts the patched server with an empty store and loads its model.
func (b *bench) startOurs(ctx context.Context, root string, threads int) (*lab.Lab, error) {
	ours, err := b.start(ctx, lab.Options{Model: b.model, Root: root, NumCtx: b.numCtx, Threads: threads})
	if err != nil {
		return nil, err
	}
	b.report.Versions.Kvtier, err = ours.Version(ctx)
	if err == nil {
		_, err = b.askShort(ctx, ours, b.prompt(shortPrompt))
	}
	if err == nil {
		if reason := ours.TierOff(); reason != "" {
			err = fmt.Errorf("the KV tier is off: %s", reason)
		}
	}
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	return ours, nil
}

// measureFixed asks for a short prompt that the slot holds.
func (b *bench) measureFixed(ctx context.Context, ours *lab.Lab, r *TTFT) error {
	prompt := b.prompt(shortPrompt)
	if _, err := b.askShort(ctx, ours, prompt); err != nil {
		return err
	}
	held, err := b.askShort(ctx, ours, prompt)
	if err != nil {
		return err
	}
	r.Fixed.AddSeconds(held.Wait())
	r.FixedBatch.AddSeconds(held.PromptEvalDuration)
	return nil
}

// ttftBefore measures the requests before the kill: cold, and in the same slot.
func (b *bench) ttftBefore(ctx context.Context, ours *lab.Lab, p *Point, prompt string, tokens int) (held lab.Answer, err error) {
	cold, err := b.ask(ctx, ours, prompt, ttftAnswer)
	if err != nil {
		return held, err
	}
	if cold.Restored.Tokens != 0 {
		return held, fmt.Errorf("%d tokens were restored for a prompt that was never seen", cold.Restored.Tokens)
	}
	p.Cold.AddSeconds(cold.Wait())
	// pages still being written would slow down the next request
	if err := ours.Settle(ctx, lab.PagesOf(tokens)); err != nil {
		return held, err
	}
	held, err = b.ask(ctx, ours, prompt, ttftAnswer)
	if err != nil {
		return held, err
	}
	p.SameSlot.AddSeconds(held.Wait())
	p.SameSlotBatch.AddSeconds(held.PromptEvalDuration)
	return held, nil
}

// ttftAfter kills, restarts and asks again: with a full page cache and, with the right to
// empty it, with an empty one.
func (b *bench) ttftAfter(ctx context.Context, ours *lab.Lab, p *Point, prompt string, held lab.Answer, root string) error {
	readPlainly := func() error {
		pages, err := lab.Pages(root)
		if err != nil {
			return err
		}
		read, err := measure.ReadFiles(pages)
		p.PlainRead.AddSeconds(read.Took)
		return err
	}
	restored, err := b.askAfterKill(ctx, ours, prompt, held, readPlainly)
	if err != nil {
		return err
	}
	p.RestoredTokens = restored.Restored.Tokens
	p.Restored.AddSeconds(restored.Wait())
	p.Took.AddSeconds(restored.Restored.Took)
	p.Batch.AddSeconds(restored.PromptEvalDuration - restored.Restored.Took)
	p.Outside.AddSeconds(restored.Wait() - restored.PromptEvalDuration)
	if !b.canDrop {
		return nil
	}
	restored, err = b.askAfterKill(ctx, ours, prompt, held, measure.DropCaches)
	if err != nil {
		return err
	}
	if p.RestoredUncached == nil {
		p.RestoredUncached = &measure.Series{}
	}
	p.RestoredUncached.AddSeconds(restored.Wait())
	return nil
}

// askAfterKill kills server and runner with SIGKILL, calls a function while nothing runs,
// starts the server again, loads the model and asks. The answer must be the same as before.
func (b *bench) askAfterKill(ctx context.Context, ours *lab.Lab, prompt string, before lab.Answer, meanwhile func() error) (lab.Answer, error) {
	if err := ours.KillServer(); err != nil {
		return lab.Answer{}, err
	}
	if err := meanwhile(); err != nil {
		return lab.Answer{}, err
	}
	if err := ours.Restart(ctx); err != nil {
		return lab.Answer{}, err
	}
	answer, err := b.ask(ctx, ours, prompt, ttftAnswer)
	switch {
	case err != nil:
		return answer, err
	case answer.Restored.Tokens == 0:
		return answer, errors.New("nothing was restored after kill -9; the server's log (-log) says why")
	case answer.Text != before.Text:
		return answer, fmt.Errorf("the answer after kill -9 differs: %q, was %q", answer.Text, before.Text)
	}
	return answer, nil
}

func toDuration(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second))
}
