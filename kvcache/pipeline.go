package kvcache

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/readahead"
	"github.com/kvtier/kvtier/rates"
)

// pagesAtOnce bounds the pages that a restore reads at the same time, so that the disk is not idle
// while the last bytes of a page are checked and written to their cells. Of each only a few pieces
// are in memory.
const pagesAtOnce = 3

// page is one page whose rows come from the store into their cells.
type page struct {
	index  int // in the plan's refs
	ref    diskstore.Ref
	layout pagefile.Layout
	dest   destination
	placed *diskstore.Placed // the rows' place on disk, nil if the cache cannot use one
	err    error             // of reading, if the rows could be written
	write  error             // of writing rows
}

// close closes the page's file.
func (pg *page) close() {
	if pg.placed != nil {
		pg.placed.File.Close() // the file was only read
	}
}

// pipeline reads the pages of a plan, several at a time, and hands them over in the order of the
// chain. Nothing else uses the cells, and only the pages handed over count.
type pipeline struct {
	*readahead.Line[page]
	*reader
	plan  *plan
	low   bool // reads are gentle
	clock readClock
}

// reader reads the pages of plans, and writes their rows.
type reader struct {
	store    *steadyStore
	caches   *caches
	rates    *rates.Rates
	log      *slog.Logger
	notFound func(seq int, refs []diskstore.Ref) // called with pages that a slot's look-up found and that lack rows
	unplaced sync.Once                           // logs once why a page was not placed
	running  context.Context                     // of probes; ends when the cache is closed
	probes   sync.WaitGroup
}

// pages begins to read a plan. With alone, only the first page is read until Together is
// called. With low, reads are gentle: they run at a lower priority, on one processor. Rows are
// written to the plan's cells, which must be free, and are dropped if the plan has none.
func (d *reader) pages(ctx context.Context, p *plan, alone, low bool) *pipeline {
	r := &pipeline{reader: d, plan: p, low: low}
	r.Line = readahead.Begin(ctx, len(p.refs), pagesAtOnce, alone, func(read func()) { go read() }, func(ctx context.Context, i int) page {
		r.clock.begin()
		defer r.clock.end()
		return r.readInto(ctx, i)
	})
	return r
}

// done lets the next page begin. A page without the rows of some group, as a server with a longer
// context stores it, does not count as found, nor do the pages after it: Put replaces those that
// lack rows.
func (r *pipeline) done(pg *page) {
	pg.close()
	if errors.Is(pg.err, pagefile.ErrMismatch) {
		r.notFound(r.plan.seq, r.plan.refs[pg.index:])
	}
	r.store.noteRead(pg.ref, pg.err)
	r.Used()
}

// close stops the readers, waits for their end, and drops the pages that they read.
func (r *pipeline) close() {
	r.Stop()
	r.drain()
}

// drain reads the rest of the plan, and drops the pages.
func (r *pipeline) drain() {
	for read := r.Next(); read != nil; read = r.Next() {
		pg := <-read
		r.done(&pg)
	}
}

// readClock measures the time during which at least one page is being read: reads overlap,
// and there are gaps while readers wait for room.
type readClock struct {
	mu      sync.Mutex
	running int
	since   time.Time
	total   time.Duration
}

func (c *readClock) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running++; c.running == 1 {
		c.since = time.Now()
	}
}

func (c *readClock) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running--; c.running == 0 {
		c.total += time.Since(c.since)
	}
}

// took returns the time spent reading up to now.
func (c *readClock) took() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running > 0 {
		return c.total + time.Since(c.since)
	}
	return c.total
}

// readInto reads one page of a plan into its cells.
func (r *pipeline) readInto(ctx context.Context, i int) page {
	p := r.plan
	ref := p.refs[i]
	pg := page{index: i, ref: ref}
	if pg.layout, pg.err = p.layout(&r.caches.geometry, i); pg.err != nil {
		return pg
	}
	pg.dest = p.destination(i)
	sections := pg.layout.Sections()
	use := func(i int, rows []byte) error {
		if p.cells == nil {
			return nil
		}
		if err := scatter(r.caches.groups, r.caches.states, sections[i], rows, pg.dest); err != nil {
			return &writeError{err}
		}
		return nil
	}
	pg.placed, pg.err = r.page(ctx, ref, p.prompt.tokens[ref.Start:ref.End()], pg.layout, diskstore.Into{Use: use, Gently: r.low})
	if failed := (*writeError)(nil); errors.As(pg.err, &failed) {
		pg.err, pg.write = nil, failed
	}
	return pg
}

// writeError is an error of writing rows: it says nothing of the page.
type writeError struct{ error }

func (e *writeError) Unwrap() error { return e.error }

// page reads a page, and keeps its file open where the cache is a [RowPlacer] and the file has
// the rows as they are.
func (d *reader) page(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) (*diskstore.Placed, error) {
	if _, ok := d.caches.groups[0].Rows.(RowPlacer); ok && !ref.Lossy { // all groups are, or none
		into.Placed = new(diskstore.Placed)
	}
	err := d.store.read(ctx, ref, tokens, layout, into)
	if err != nil || into.Placed == nil {
		return nil, err
	}
	if into.Placed.File == nil {
		d.notPlaced(into.Placed.Err)
		return nil, nil
	}
	return into.Placed, nil
}

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

// place tells each group that the rows of its cells are also in a page's file.
func (d *reader) place(pg *page) {
	sections := pg.layout.Sections()
	for g := range d.caches.groups {
		var layers []int
		var keys, values []int64
		for i, s := range sections { // K and V of one layer after the other
			if groupOf(d.caches.groups, s) != g || s.Kind == pagefile.KindCell {
				continue
			}
			at := pg.placed.Offsets[i] + int64(pg.dest.from[g])*int64(s.RowBytes)
			if s.Kind == pagefile.KindV {
				values = append(values, at)
				continue
			}
			layers, keys = append(layers, int(s.Layer)), append(keys, at)
		}
		if err := d.caches.groups[g].Rows.(RowPlacer).PlaceRows(pg.dest.cells[g], pg.placed.File, layers, keys, values); err != nil {
			d.notPlaced(err)
		}
	}
}

// notPlaced logs once why stored rows will be written to the spill file again. The second
// write costs time only.
func (d *reader) notPlaced(err error) {
	d.unplaced.Do(func() {
		d.log.Debug("kv tier: a stored page's rows are not used in place", "reason", err)
	})
}
