package kvcache

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry/why"
)

// costs describes a plan's pages to package rates.
func (p *plan) costs(c *caches) rates.Chain {
	of := rates.Chain{Base: p.wanted(p.base), Pages: make([]rates.Page, len(p.refs)), Indivisible: !c.divisible()}
	for i, ref := range p.refs {
		begin := int(ref.Start)
		if p.by != 0 { // of the first page only the run's part
			begin = max(begin, p.base)
		}
		bytes, form := p.bytes(&c.geometry, i)
		of.Pages[i] = rates.Page{
			Start: p.wanted(begin), Tokens: p.pageEnd(i) - begin, Bytes: bytes, Form: form, Tier: ref.Tier,
		}
	}
	return of
}

// affordable counts the plan's leading pages that are read sooner than computed.
func (f *finder) affordable(p *plan) int {
	if f.always {
		return len(p.refs)
	}
	return f.rates.Plan(p.costs(f.caches))
}

// watch follows the reading of a plan's pages; nil if all are read, however long that takes.
func (f *finder) watch(p *plan) *rates.Watch {
	if f.always {
		return nil
	}
	c := p.costs(f.caches)
	if c.Indivisible {
		c.Base = 0 // a restore that is given up leaves nothing in the slot
	}
	r := f.rates
	if p.ahead {
		r = r.Apart() // the loading of the weights may keep the disk busy
	}
	return r.Watch(c, pagesAtOnce)
}

// worth shortens a plan to an end at which the sequence can go on and up to which reading
// pays. worth reports whether the end is still at least `least`.
func (r *restoring) worth(ctx context.Context, p *plan, least int) bool {
	r.find.trim(ctx, p)
	if p.end < least || ctx.Err() != nil {
		return false
	}
	if n := r.find.affordable(p); n < len(p.refs) {
		r.skip(p, n)
		if n == 0 {
			return false
		}
		p.refs, p.end = p.refs[:n], p.pageEnd(n-1)
		r.find.trim(ctx, p)
	}
	return p.end >= least
}

// skip counts and logs the plan's pages from index `from` on, which are computed because
// reading takes longer.
func (r *restoring) skip(p *plan, from int) {
	r.mu.Lock()
	r.stats.SkippedPages += int64(len(p.refs) - from)
	r.mu.Unlock()
	r.log.Debug("kv tier: pages are not read, computing them is quicker",
		"pages", len(p.refs)-from, "tier", p.refs[from].Tier, "position", p.refs[from].Start)
	r.why.unread(p, from, why.UnreadQuicker)
	if !p.ahead {
		r.reader.probe(p, from)
	}
}

// giveUp ends a restore before the page with index `from`: computing the rest became quicker.
func (r *restoring) giveUp(p *plan, from int) {
	r.meter.Add(givenUp, 1)
	r.skip(p, from)
}

// pace follows a restore and ends the restore when computing the rest is quicker. A nil
// pace restores all pages.
type pace struct {
	*rates.Watch
	after func(time.Duration) <-chan time.Time
	began time.Time
}

func (r *restoring) pace(p *plan) *pace {
	if watch := r.find.watch(p); watch != nil {
		return &pace{Watch: watch, after: r.after}
	}
	return nil
}

// begin starts the clock. reading is the time already spent reading pages.
func (w *pace) begin(reading time.Duration) {
	if w != nil {
		w.began = time.Now().Add(-reading)
	}
}

// wait waits for a page as long as reading it can still be quicker than computing it.
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

// next reports whether to wait for another page after one has arrived.
func (w *pace) next() bool { return w == nil || w.Arrived(time.Since(w.began)) }

// alone reports whether the first page is read before any other.
func (w *pace) alone() bool { return w != nil && w.Alone() }

// probe reads some of a plan's pages, from index `from` on, to measure the present speed of
// their tier. The request does not wait for the probe and computes these pages; the time of
// the probe is bounded.
func (d *reader) probe(p *plan, from int) {
	c := p.costs(d.caches).After(from)
	n, limit := d.rates.Probe(c, pagesAtOnce)
	if n == 0 {
		return
	}
	probed := *p
	probed.refs, probed.state, probed.cells = p.refs[from:from+n], false, nil // nobody waits: rows are dropped
	d.probes.Add(1)
	go func() {
		defer d.probes.Done()
		ctx, cancel := context.WithTimeout(d.running, limit)
		defer cancel()
		began := time.Now()
		r := d.pages(ctx, &probed, false, false)
		defer r.close()
		for read := r.Next(); read != nil; read = r.Next() {
			pg := <-read
			r.done(&pg)
			if pg.err == nil {
				continue
			}
			if ctx.Err() == context.DeadlineExceeded {
				d.rates.Probed(c.Pages[:n], time.Since(began), false)
			}
			return
		}
		if ctx.Err() == nil {
			d.rates.Probed(c.Pages[:n], time.Since(began), true)
		}
	}()
}
