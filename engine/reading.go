package engine

import (
	"context"
	"iter"
	"time"

	"github.com/kvtier/kvtier/internal/readahead"
	"github.com/kvtier/kvtier/rates"
)

// Reading reads the pages of a chain in order, for as long as that is quicker than computing them, and
// some of them ahead. One goroutine uses a Reading.
type Reading[T any] struct {
	gate  *Gate
	chain rates.Chain
	line  *readahead.Line[T]
	drop  func(T)
	watch *rates.Watch // nil: each page is waited for
	began time.Time
	alone bool // the first page is read before any other

	late    <-chan T // a page that nobody waits for any more; nil without
	givenUp bool
}

// Read begins to read the pages of a chain. page reads one, and drop takes each page that [Reading.Pages]
// does not hand over. With oneByOne, a page is read when the page before it was used.
func Read[T any](ctx context.Context, g *Gate, c rates.Chain, oneByOne bool, page func(ctx context.Context, i int) T, drop func(T)) *Reading[T] {
	r := &Reading[T]{gate: g, chain: c, drop: drop, began: time.Now()}
	if !g.Always {
		atOnce := PagesAtOnce
		if oneByOne {
			atOnce = 1
		}
		r.watch = g.Rates.Watch(c, atOnce)
		r.alone = !oneByOne && r.watch.Alone()
	}
	r.line = readahead.Begin(ctx, len(c.Pages), PagesAtOnce, oneByOne || r.alone, g.Spawn, page)
	return r
}

// Pages hands over the pages in order, each with its number when it has come in. It ends with the last
// page, before one that is computed sooner, and when ctx has ended. A caller may break off.
func (r *Reading[T]) Pages() iter.Seq2[int, T] {
	return func(yield func(int, T) bool) {
		for i, page := range r.chain.Pages {
			read := r.line.Next()
			if read == nil {
				return
			}
			pg, there := r.await(read)
			if !there {
				r.watch.GaveUp(time.Since(r.began))
				r.giveUp()
				return
			}
			if !yield(i, pg) {
				return
			}
			r.gate.CountRead(page.Tier)
			r.used()
			if r.watch != nil && !r.watch.Arrived(time.Since(r.began)) {
				if i+1 < len(r.chain.Pages) {
					r.giveUp()
				}
				return
			}
		}
	}
}

// await waits for a page as long as reading it can still be quicker than computing it.
func (r *Reading[T]) await(read <-chan T) (pg T, there bool) {
	select {
	case pg = <-read:
		return pg, true
	default:
	}
	select {
	case pg = <-read:
		return pg, true
	case <-r.deadline():
		r.late = read
		return pg, false
	}
}

// deadline is the time at which the awaited page is given up; nil for never.
func (r *Reading[T]) deadline() <-chan time.Time {
	if r.watch == nil {
		return nil
	}
	return r.gate.After(time.Until(r.began.Add(r.watch.Deadline())))
}

// used makes room for another page.
func (r *Reading[T]) used() {
	if r.alone {
		r.line.Together()
		r.alone = false
	}
	r.line.Used()
}

func (r *Reading[T]) giveUp() {
	r.givenUp = true
	r.gate.Meter.Add("ollama_kv_restores_given_up_total", 1)
}

// GivenUp reports whether Pages ended before a page that is computed sooner.
func (r *Reading[T]) GivenUp() bool { return r.givenUp }

// Examine reads the pages behind a damaged one at which the caller broke off, so that every damaged page
// is found: one left in its place would count as stored when the prompt's pages are stored again. The
// request waits for that as long as for one page.
func (r *Reading[T]) Examine() {
	for late := r.deadline(); ; {
		r.used()
		read := r.line.Next()
		if read == nil {
			return
		}
		select {
		case pg := <-read:
			r.drop(pg)
		case <-late:
			r.late = read
			return
		}
	}
}

// Stop ends the context of all reads, and returns when no more begin. Some may still go on.
func (r *Reading[T]) Stop() { r.line.Stop() }

// Close stops, and returns when no page is being read any more.
func (r *Reading[T]) Close() {
	r.line.Stop()
	if r.late != nil {
		r.drop(<-r.late)
	}
	for read := r.line.Next(); read != nil; read = r.line.Next() {
		r.drop(<-read)
	}
}
