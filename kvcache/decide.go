package kvcache

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry/why"
)

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
