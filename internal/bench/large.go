package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/models"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/table"
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
func (b *bench) measureLarge(ctx context.Context) (err error) {
	r := &Large{KVBytesPerToken: largeShape.WithDefaults().KVBytesPerToken()}
	r.Point.Tokens = largeTokens
	if b.settings.quick {
		r.Point.Tokens = quickTokens
	}
	b.report.Large = r
	l := *b
	l.shape = largeShape.WithDefaults()
	l.numCtx = (r.Point.Tokens + contextSlack + contextStep - 1) / contextStep * contextStep
	if l.model, err = models.Random(b.dir, "kvtier-large", l.shape); err != nil {
		return err
	}
	for i := range b.settings.repetitions {
		step := b.steps.Step(fmt.Sprintf("large, %s tokens, %d of %d", show.Count(r.Point.Tokens), i+1, b.settings.repetitions))
		err := l.largeOnce(ctx, r)
		step.End("", err)
		if err != nil {
			return err
		}
	}
	b.report.Versions.Kvtier, b.seed = l.report.Versions.Kvtier, l.seed
	return nil
}

// largeOnce runs one repetition.
func (b *bench) largeOnce(ctx context.Context, r *Large) (err error) {
	root := filepath.Join(b.dir, "pages-large")
	ours, err := b.startOurs(ctx, root, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.Close(), os.RemoveAll(root)) }()
	p := &r.Point
	prompt := b.prompt(p.Tokens)
	held, err := b.ttftBefore(ctx, ours, p, prompt, p.Tokens)
	if err != nil {
		return err
	}
	if err := b.ttftAfter(ctx, ours, p, prompt, held, root); err != nil {
		return err
	}
	hot := last(p.SameSlot)
	r.Over.Add(last(p.Restored) / hot)
	if p.RestoredUncached != nil {
		if r.OverUncached == nil {
			r.OverUncached = &measure.Series{}
		}
		r.OverUncached.Add(last(*p.RestoredUncached) / hot)
	}
	return nil
}

func last(s measure.Series) float64 { return s.Values[len(s.Values)-1] }

func lastSeconds(s measure.Series) string { return show.Seconds(toDuration(last(s))) }

func (l *Large) print(w io.Writer) {
	p := l.Point
	ratio := func(s measure.Series) string {
		return spread(s, func(v float64) string { return fmt.Sprintf("%.2f", v) })
	}
	rows := [][]string{
		{"same slot", seconds(p.SameSlot), ""},
		{"restored after kill -9", seconds(p.Restored), ratio(l.Over)},
	}
	if l.OverUncached != nil {
		rows = append(rows, []string{"  and empty page cache", seconds(*p.RestoredUncached), ratio(*l.OverUncached)})
	}
	rows = append(rows, []string{"  of which restore", seconds(p.Took), ""}, []string{"  reading the files alone", seconds(p.PlainRead), ""})
	fmt.Fprintf(w, "\nTime to first token, model load taken off: %s tokens of %s bytes of K/V each, as in a model of 8B parameters, %d times\n\n",
		show.Count(p.Tokens), show.Count(int(l.KVBytesPerToken)), len(p.SameSlot.Values))
	table.Print(w, []string{"", "time", "over same slot"}, rows)
}
