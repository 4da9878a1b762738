package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
)

// restoresPerRepetition is the number of restores in a repetition: one alone is too short.
const restoresPerRepetition = 5

// measureRestore restores a prompt repeatedly on a running server, after another prompt took
// the slot, and reads the same files.
func (b *bench) measureRestore(ctx context.Context) (err error) {
	r := &Restore{Tokens: b.settings.restoreTokens}
	b.report.Restore = r
	root := filepath.Join(b.dir, "pages")
	ours, err := b.startOurs(ctx, root, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.Close(), os.RemoveAll(root)) }()

	step := b.steps.Step(fmt.Sprintf("restore, store %s tokens", show.Count(r.Tokens)))
	prompt := b.prompt(r.Tokens)
	_, err = b.ask(ctx, ours, prompt, 1)
	if err == nil {
		err = ours.Settle(ctx, lab.PagesOf(r.Tokens))
	}
	step.End("", err)
	if err != nil {
		return err
	}
	step = b.steps.Step("restore and read")
	for range b.settings.repetitions * restoresPerRepetition {
		if err := b.restoreOnce(ctx, ours, r, prompt, root); err != nil {
			step.End("", err)
			return err
		}
	}
	step.End("", nil)
	r.Cached.Ratio = r.Cached.Restore.Median / r.Cached.Read.Median
	if r.Uncached != nil {
		r.Uncached.Ratio = r.Uncached.Restore.Median / r.Uncached.Read.Median
	}
	return nil
}

// restoreOnce runs one repetition, with a full and with an empty page cache.
func (b *bench) restoreOnce(ctx context.Context, ours *lab.Lab, r *Restore, prompt, root string) error {
	pages, err := lab.Pages(root)
	if err != nil {
		return err
	}
	nothing := func() error { return nil }
	if err := b.compareRead(ctx, ours, r, &r.Cached, prompt, pages, nothing); err != nil || !b.canDrop {
		return err
	}
	if r.Uncached == nil {
		r.Uncached = &Bandwidth{}
	}
	return b.compareRead(ctx, ours, r, r.Uncached, prompt, pages, measure.DropCaches)
}

// compareRead measures a plain read and a restore, each after prepare.
func (b *bench) compareRead(ctx context.Context, ours *lab.Lab, r *Restore, into *Bandwidth, prompt string, pages []string, prepare func() error) error {
	if err := prepare(); err != nil {
		return err
	}
	read, err := measure.ReadFiles(pages)
	if err != nil {
		return err
	}
	// another chat takes the slot
	if _, err := b.askShort(ctx, ours, b.prompt(shortPrompt)); err != nil {
		return err
	}
	if err := prepare(); err != nil {
		return err
	}
	answer, err := b.ask(ctx, ours, prompt, 1)
	if err != nil {
		return err
	}
	if answer.Restored.Tokens == 0 {
		return errors.New("nothing was restored after another chat took the slot")
	}
	r.Files, r.Bytes = len(pages), read.Bytes
	into.Read.Add(read.Rate())
	into.Restore.Add(float64(b.shape.KVBytesPerToken()) * float64(answer.Restored.Tokens) / answer.Restored.Took.Seconds())
	return nil
}
