package evict

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/bench/trace"
	"github.com/kvtier/kvtier/internal/progress"
)

// Report is what stores of several sizes give back of a trace.
type Report struct {
	Trace    string `json:"trace"`
	Requests int    `json:"requests"`
	Blocks   int    `json:"blocks"`          // of all prompts
	Distinct int    `json:"distinct_blocks"` // of which a store has room for a share
	Rows     []Row  `json:"stores"`
}

// Row is the share of all prompts' blocks that a store gives back.
type Row struct {
	Percent int     `json:"percent_of_distinct_blocks"` // the store's size
	LRU     float64 `json:"lru"`
	Use     float64 `json:"use"`
	Future  float64 `json:"future"` // knowing what comes
}

// sizes are those of stores, in percent of a trace's distinct blocks.
var sizes = []int{2, 5, 10, 20, 40}

// quickRequests and quickSize are those of -quick.
const (
	quickRequests = 200
	quickSize     = 40 // small stores take longest: they collect most often
)

// Measure replays a trace on stores of several sizes. The trace is a file or the name of a made one, by default
// Default.
func Measure(ctx context.Context, steps show.Steps, name string, quick bool) (*Report, error) {
	name = cmp.Or(name, Default)
	requests, heading, err := open(name)
	if err != nil {
		return nil, err
	}
	percents := sizes
	if quick {
		requests, percents = requests[:min(len(requests), quickRequests)], []int{quickSize}
	}
	t := newTree(requests)
	r := &Report{Trace: heading, Requests: len(requests), Blocks: t.blocks, Distinct: len(t.nodes), Rows: make([]Row, len(percents))}
	return r, steps.Do("evict, "+filepath.Base(name), func(step *progress.Step) (string, error) {
		return "", r.measure(ctx, requests, t, percents, step)
	})
}

// measure fills in the rows. As many stores are simulated at a time as there are processors.
func (r *Report) measure(ctx context.Context, requests []trace.Request, t *tree, percents []int, step *progress.Step) error {
	var done atomic.Int64
	total := int64(2 * len(percents) * len(requests))
	served := func() { step.Progress(done.Add(1), total) }
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, percent := range percents {
		row, pages := &r.Rows[i], max(1, len(t.nodes)*percent/100)
		row.Percent, row.Future = percent, t.share(t.future(pages))
		group.Go(func() error {
			given, err := replay(ctx, requests, pages, false, served)
			row.LRU = t.share(given)
			return err
		})
		group.Go(func() error {
			given, err := replay(ctx, requests, pages, true, served)
			row.Use = t.share(given)
			return err
		})
	}
	return group.Wait()
}

// Print writes the report as text.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "\n%s: %s requests, %s blocks, %s distinct\n", r.Trace, show.Count(r.Requests), show.Count(r.Blocks), show.Count(r.Distinct))
	for _, row := range r.Rows {
		fmt.Fprintf(w, "%d%%  lru %.3f  use %.3f  future %.3f\n", row.Percent, row.LRU, row.Use, row.Future)
	}
}
