package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
)

// Restore is speed in bytes per second. Bytes is the size of the page files.
type Restore struct {
	Tokens   int        `json:"tokens"`
	Files    int        `json:"files"`
	Bytes    int64      `json:"bytes"`
	Cached   Bandwidth  `json:"cached"`
	Uncached *Bandwidth `json:"uncached,omitempty"` // nil without the right to drop_caches
}

// Bandwidth compares a restore with a plain read of the same files.
type Bandwidth struct {
	Restore measure.Series `json:"restore" unit:"B/s"`
	Read    measure.Series `json:"read" unit:"B/s"`
	Ratio   float64        `json:"ratio"` // restore over read, of the medians
}

// measureRestore restores a prompt repeatedly on a running server, after another prompt took the slot,
// and reads the same files.
func measureRestore(ctx context.Context, r *rig) (any, error) {
	t := &Restore{Tokens: r.restoreTokens}
	if r.canDrop {
		t.Uncached = &Bandwidth{}
	}
	err := r.ours(ctx, lab.Options{}, func(ours *lab.Lab, root string) error {
		prompt := r.prompt(t.Tokens)
		if err := r.Step(fmt.Sprintf("restore, store %s tokens", show.Count(t.Tokens)), func() (string, error) {
			_, err := r.store(ctx, ours, prompt, t.Tokens, 1)
			return "", err
		}); err != nil {
			return err
		}
		return r.Step("restore and read", func() (string, error) {
			for range r.repetitions * restoresPerRepetition {
				err := t.compareRead(ctx, r, ours, &t.Cached, prompt, root, func() error { return nil })
				if err == nil && t.Uncached != nil {
					err = t.compareRead(ctx, r, ours, t.Uncached, prompt, root, measure.DropCaches)
				}
				if err != nil {
					return "", err
				}
			}
			return "", nil
		})
	})
	return t, err
}

// compareRead measures a plain read and a restore, each after prepare.
func (t *Restore) compareRead(ctx context.Context, r *rig, ours *lab.Lab, into *Bandwidth, prompt, root string, prepare func() error) error {
	pages, err := lab.Pages(root)
	if err != nil {
		return err
	}
	if err := prepare(); err != nil {
		return err
	}
	read, err := measure.ReadFiles(pages, 1, measure.ReadBuffer)
	if err != nil {
		return err
	}
	if err := r.load(ctx, ours); err != nil { // another chat takes the slot
		return err
	}
	if err := prepare(); err != nil {
		return err
	}
	answer, err := r.ask(ctx, ours, prompt, 1)
	if err != nil {
		return err
	}
	if answer.Restored.Tokens == 0 {
		return errors.New("nothing was restored after another chat took the slot")
	}
	t.Files, t.Bytes = len(pages), read.Bytes
	into.Read.Add(read.Rate())
	into.Restore.Add(float64(r.shape.KVBytesPerToken()) * float64(answer.Restored.Tokens) / answer.Restored.Took.Seconds())
	into.Ratio = into.Restore.Median / into.Read.Median
	return nil
}
