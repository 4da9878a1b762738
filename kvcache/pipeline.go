package kvcache

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/readahead"
	"github.com/kvtier/kvtier/internal/steady"
)

// pagesInMemory bounds the pages that a restore holds: one that is being written to its
// cells, and two that are being read, so that the disk is not idle while the last bytes of
// a page are checked.
const pagesInMemory = 3

// page is one page on its way from the store to its cells.
type page struct {
	index   int // in the plan's refs
	ref     diskstore.Ref
	layout  pagefile.Layout
	buffer  *[]byte
	payload []byte            // part of the buffer
	placed  *diskstore.Placed // the payload's place on disk, nil if the cache cannot use one
	err     error
}

// close closes the page's file.
func (pg *page) close() {
	if pg.placed != nil {
		pg.placed.Close() // the file was only read
	}
}

// pipeline reads the pages of a plan in the order of the chain, while earlier pages are
// written to their cells.
type pipeline struct {
	*readahead.Line[page]
	t     *TieredCausal
	plan  *plan
	low   bool // reads are gentle
	clock readClock
}

// readPages begins to read. With alone, only the first page is read until Together is
// called. With low, reads are gentle: they run at a lower priority, on one processor.
func (t *TieredCausal) readPages(ctx context.Context, p *plan, alone, low bool) *pipeline {
	r := &pipeline{t: t, plan: p, low: low}
	r.Line = readahead.Begin(ctx, len(p.refs), pagesInMemory, alone, func(read func()) { go read() }, func(ctx context.Context, i int) page {
		r.clock.begin()
		defer r.clock.end()
		return r.readInto(ctx, i)
	})
	return r
}

// done passes a page's room in memory on to the next page. A page without the rows of some
// group, as a server with a longer context stores it, does not count as found, nor do the pages
// after it: Put replaces those that lack rows.
func (r *pipeline) done(pg *page) {
	pg.close()
	if errors.Is(pg.err, pagefile.ErrMismatch) {
		r.t.notFound(r.plan.seq, r.plan.refs[pg.index:])
	}
	r.t.noteRead(pg.ref, pg.err)
	if pg.buffer != nil {
		r.t.buffers.Put(pg.buffer)
	}
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

// readInto reads one page of a plan into a buffer.
func (r *pipeline) readInto(ctx context.Context, i int) page {
	t, p := r.t, r.plan
	ref := p.refs[i]
	pg := page{index: i, ref: ref}
	if pg.layout, pg.err = p.layout(&t.geometry, i); pg.err != nil {
		return pg
	}
	size := pg.layout.Size()
	var ok bool
	if pg.buffer, ok = t.buffers.Get().(*[]byte); !ok || cap(*pg.buffer) < size {
		b := make([]byte, size)
		pg.buffer = &b
	}
	pg.payload = (*pg.buffer)[:size]
	var how []diskstore.ReadOption
	if r.low {
		how = append(how, diskstore.Gently)
	}
	pg.placed, pg.err = t.readPage(ctx, ref, p.prompt.tokens[ref.Start:int(ref.Start)+ref.Tokens], pg.layout, pg.payload, how...)
	if errors.Is(pg.err, steady.ErrHung) {
		pg.buffer, pg.payload = nil, nil // the read still uses them
	}
	return pg
}

// readPage reads a page, and keeps its file open where the cache is a [RowPlacer].
func (t *TieredCausal) readPage(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, buf []byte, how ...diskstore.ReadOption) (*diskstore.Placed, error) {
	if _, ok := t.groups[0].Rows.(RowPlacer); !ok { // all groups are, or none
		return nil, t.store.Read(ctx, ref, tokens, layout, buf, how...)
	}
	placed, err := t.store.ReadPlaced(ctx, ref, tokens, layout, buf, how...)
	if errors.Is(err, diskstore.ErrNotPlaced) {
		t.notPlaced(err)
		return nil, nil
	}
	return placed, err
}
