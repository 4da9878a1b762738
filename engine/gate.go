package engine

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
)

// PagesAtOnce bounds the pages of a prompt that are read at the same time: while one is checked and
// put where it is used, the tier reads two.
const PagesAtOnce = rates.PagesAtOnce

// Gate decides which stored pages of a prompt are read or computed. Several goroutines may use one.
type Gate struct {
	Rates  *rates.Rates
	Always bool             // pages are read at any cost
	Meter  *telemetry.Meter // nil counts nothing
	Log    *slog.Logger

	// Spawn runs a function that reads from the store in a goroutine, which may outlive a request.
	Spawn func(func())
	After func(time.Duration) <-chan time.Time // time.After, except in tests
}

// Pays returns how many leading pages of a chain are read.
func (g *Gate) Pays(c rates.Chain) int {
	if g.Always {
		return len(c.Pages)
	}
	return g.Rates.Plan(c)
}

// Skip notes that the pages of a chain from index n on are computed. Some of them are read all the same,
// behind the request, if their tier was not probed lately: read reads the i-th page of the chain and
// drops it. A nil read probes nothing. ctx is not the request's.
func (g *Gate) Skip(ctx context.Context, c rates.Chain, n int, read func(ctx context.Context, i int) error) {
	skipped := c.After(n)
	if len(skipped.Pages) == 0 {
		return
	}
	first := skipped.Pages[0]
	g.Meter.Add(decided("compute"), float64(len(skipped.Pages)))
	g.Log.Debug("kv tier: pages are not read, computing them is quicker",
		"pages", len(skipped.Pages), "tier", first.Tier, "position", first.Start)
	if read != nil {
		g.probe(ctx, skipped, func(ctx context.Context, i int) error { return read(ctx, n+i) })
	}
}

// probe reads some leading pages of a chain to measure the present speed of their tier. Nobody waits
// for the probe, whose time is bounded.
func (g *Gate) probe(ctx context.Context, c rates.Chain, read func(ctx context.Context, i int) error) {
	n, limit := g.Rates.Probe(c, PagesAtOnce)
	if n == 0 {
		return
	}
	g.Spawn(func() {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		if n > 1 && g.Rates.Watch(c, n).Alone() {
			first := c.Pages[:1]
			if !g.probed(ctx, first, read) {
				return
			}
			c, n = c.After(1), n-1
			g.probed(ctx, c.Pages[:n], func(ctx context.Context, i int) error { return read(ctx, 1+i) })
			return
		}
		g.probed(ctx, c.Pages[:n], read)
	})
}

// probed reads pages together, tells rates of their time, and reports whether all arrived.
func (g *Gate) probed(ctx context.Context, c []rates.Page, read func(ctx context.Context, i int) error) (complete bool) {
	began := time.Now()
	pages, each := errgroup.WithContext(ctx)
	for i := range c {
		pages.Go(func() error { return read(each, i) })
	}
	if complete = pages.Wait() == nil; complete || ctx.Err() == context.DeadlineExceeded {
		g.Rates.Probed(c, time.Since(began), complete)
	}
	return complete
}

// CountRead counts a page that came from a tier.
func (g *Gate) CountRead(from string) {
	g.Meter.Add(decided("read"), 1)
	if from != tier.RAM {
		g.Meter.Add(telemetry.Series("ollama_kv_page_faults_total", "tier", from), 1)
	}
}

func decided(decision string) string {
	return telemetry.Series("ollama_kv_gate_pages_total", "decision", decision)
}

// Background is work behind requests. Nothing may begin while Wait waits and none is under way.
type Background struct{ sync.WaitGroup }

// Spawn runs a function in a goroutine of its own.
func (b *Background) Spawn(f func()) {
	b.Add(1)
	go func() {
		defer b.Done()
		f()
	}()
}
