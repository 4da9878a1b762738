package main

import (
	"context"
	"fmt"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// largeTokens fill 429 MB.
const largeTokens = 3276

// largeShape has the K/V of an 8B model and few weights, so that computing ends in time.
var largeShape = testmodel.Shape{Layers: 32, Embed: 256, Heads: 8, KVHeads: 8, HeadDim: 128, Context: trainedContext, Seed: 1}

// Large compares a restart with a slot that lost nothing, at the size of a real model's K/V.
type Large struct {
	KVBytesPerToken int64 `json:"kv_bytes_per_token"`
	Point           Point `json:"point"` // without a stock server
	// Over is Restored over SameSlot of each repetition, OverUncached that of RestoredUncached.
	Over         measure.Series  `json:"over"`
	OverUncached *measure.Series `json:"over_uncached,omitempty"`
}

// measureLarge measures requests before and after kill -9.
func measureLarge(ctx context.Context, r *rig, s settings) (any, error) {
	t := &Large{KVBytesPerToken: largeShape.WithDefaults().KVBytesPerToken()}
	p := &t.Point
	if p.Tokens = largeTokens; s.quick {
		p.Tokens = quickTokens
	}
	large, err := r.with(largeShape, "kvtier-large", p.Tokens)
	if err != nil {
		return nil, err
	}
	err = r.repeat(fmt.Sprintf("large, %s tokens", show.Count(p.Tokens)), s.repetitions, func(i int) (string, error) {
		err := large.ours(ctx, lab.Options{}, func(l *lab.Lab, root string) error {
			return p.beforeAndAfter(ctx, large, l, root, large.prompt(p.Tokens))
		})
		if err != nil {
			return "", err
		}
		t.Over.Add(p.Restored.Values[i] / p.SameSlot.Values[i])
		if p.RestoredUncached != nil {
			if t.OverUncached == nil {
				t.OverUncached = &measure.Series{}
			}
			t.OverUncached.Add(p.RestoredUncached.Values[i] / p.SameSlot.Values[i])
		}
		return "", nil
	})
	return t, err
}
