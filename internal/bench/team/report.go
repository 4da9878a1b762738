package team

import (
	"context"
	"fmt"

	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/rates"
)

// Report is the time of prompts of which an engine has all pages, by whether reading pages was decided
// with or without observations.
type Report struct {
	Warm    Ratios  `json:"after_some_prompts"`
	Known   Ratios  `json:"engine_not_measured"`
	Unknown Ratios  `json:"nothing_measured"`
	Trace   string  `json:"trace"`
	Best    float64 `json:"memory_without_end"` // gives back as large a share of the trace
	Days    []Row   `json:"days"`
}

// Ratios are times, as multiples of that of the better of reading all pages and computing all.
type Ratios struct {
	Ratios measure.Series `json:"of_the_better_choice"` // of all cells
	Above  int            `json:"above_1_1"`            // cells
}

// Measure simulates prompts of several lengths in every cell of the grid.
func Measure(ctx context.Context, steps show.Steps, quick bool) (*Report, error) {
	r, lengths := &Report{}, []int{1, 4, 16, 64}
	if quick {
		lengths = lengths[:1]
	}
	err := steps.Repeat("team, links", len(lengths), func(i int) (string, error) {
		for _, c := range Grid() {
			better := c.Better(lengths[i])
			r.Warm.add(c.Prompt(c.Warm(), lengths[i]) / better)
			r.Known.add(c.Prompt(c.Known(), lengths[i]) / better)
			r.Unknown.add(c.Prompt(rates.New(), lengths[i]) / better)
		}
		return fmt.Sprintf("%d pages", lengths[i]), ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	return r, r.replay(ctx, steps, quick)
}

// Parts of the trace.
const (
	dayPart   = 32
	quickPart = 256
)

// replay simulates days of servers with and without an engine.
func (r *Report) replay(ctx context.Context, steps show.Steps, quick bool) error {
	part, days := dayPart, Days()
	if quick {
		part, days = quickPart, days[len(days)-1:]
	}
	requests, from, err := Trace(part)
	if err != nil {
		return err
	}
	r.Trace, r.Best = from, best(requests)
	return steps.Repeat("team, days", len(days), func(i int) (string, error) {
		row, err := days[i].Run(ctx, requests)
		r.Days = append(r.Days, row)
		return row.Setup, err
	})
}

func (r *Ratios) add(ratio float64) {
	r.Ratios.Add(ratio)
	if ratio > 1.1 {
		r.Above++
	}
}
