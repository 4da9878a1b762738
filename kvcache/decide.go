package kvcache

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/kvcache/rates"
)

// costs is a plan's pages as far as their cost goes.
func (t *TieredCausal) costs(p *plan) rates.Chain {
	c := rates.Chain{Base: p.wanted(p.base), Pages: make([]rates.Page, len(p.refs)), Indivisible: !t.divisible()}
	for i, ref := range p.refs {
		begin := int(ref.Start)
		if p.by != 0 { // of the first page only what the run has of it
			begin = max(begin, p.base)
		}
		c.Pages[i] = rates.Page{
			Start: p.wanted(begin), Tokens: p.pageEnd(i) - begin, Bytes: p.bytes(&t.geometry, i), Tier: ref.Tier,
		}
	}
	return c
}

// decide cuts a plan down to the pages that are read sooner than computed, and reports
// whether there are any.
func (t *TieredCausal) decide(ctx context.Context, p *plan) bool {
	if t.opts.AlwaysRestore {
		return true
	}
	c := t.costs(p)
	n := t.rates.Plan(c)
	if n == len(p.refs) {
		return true
	}
	t.skip(p, n)
	if n == 0 {
		return false
	}
	p.refs, p.end = p.refs[:n], p.pageEnd(n-1)
	t.trim(ctx, p)
	return true
}

// skip notes that a plan's pages from one on are not read, because computing them is quicker.
func (t *TieredCausal) skip(p *plan, from int) {
	t.mu.Lock()
	t.stats.SkippedPages += int64(len(p.refs) - from)
	t.mu.Unlock()
	t.log.Debug("kv tier: pages are not read, computing them is quicker",
		"pages", len(p.refs)-from, "tier", p.refs[from].Tier, "position", p.refs[from].Start)
	t.probe(p, from)
}

// pace follows a restore, and says when it is over because computing the rest is quicker. It
// is nil where everything is to be restored.
type pace struct {
	*rates.Watch
	after func(time.Duration) <-chan time.Time
	began time.Time
}

func (t *TieredCausal) pace(p *plan) *pace {
	if t.opts.AlwaysRestore {
		return nil
	}
	return &pace{Watch: t.rates.Watch(t.costs(p), pagesInMemory), after: t.after}
}

// begin starts the clock, after pages were being read for some time.
func (w *pace) begin(reading time.Duration) {
	if w != nil {
		w.began = time.Now().Add(-reading)
	}
}

// wait waits for a page, but not longer than it is worth.
func (w *pace) wait(read <-chan page) (pg page, there bool) {
	if w == nil {
		return <-read, true
	}
	select {
	case pg = <-read:
		return pg, true
	default:
	}
	select {
	case pg = <-read:
		return pg, true
	case <-w.after(time.Until(w.began.Add(w.Deadline()))):
		w.GaveUp(time.Since(w.began))
		return pg, false
	}
}

// next reports whether to wait for one more page after one is in.
func (w *pace) next() bool { return w == nil || w.Arrived(time.Since(w.began)) }

// alone reports whether the first page is to be read before any other.
func (w *pace) alone() bool { return w != nil && w.Alone() }

// probe reads some of a plan's pages, from the given one on, to see how quick their tier is
// now. It does so behind the request, which computes them, and for a bounded time.
func (t *TieredCausal) probe(p *plan, from int) {
	c := t.costs(p).After(from)
	n, limit := t.rates.Probe(c, pagesInMemory)
	if n == 0 {
		return
	}
	probed := *p
	probed.refs, probed.state = p.refs[from:from+n], false
	t.probes.Add(1)
	go func() {
		defer t.probes.Done()
		ctx, cancel := context.WithTimeout(t.running, limit)
		defer cancel()
		began := time.Now()
		r := t.readPages(ctx, &probed, false, false)
		defer r.close()
		for read := range r.pages {
			pg := <-read
			r.done(&pg)
			if pg.err == nil {
				continue
			}
			if ctx.Err() == context.DeadlineExceeded {
				t.rates.Probed(c.Pages[:n], time.Since(began), false)
			}
			return
		}
		if ctx.Err() == nil {
			t.rates.Probed(c.Pages[:n], time.Since(began), true)
		}
	}()
}
