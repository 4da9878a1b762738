package kvcache

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/priority"
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
	t     *TieredCausal
	plan  *plan
	pages chan chan page // one channel per page, in order, which gives the page when it is read
	room  chan struct{}  // one element per page in memory
	low   bool           // readers read gently and run at a lower priority
	stop  context.CancelFunc
	clock readClock
}

// readPages begins to read. With alone, only the first page is read until together is
// called. With low, readers read gently and run at a lower priority.
func (t *TieredCausal) readPages(ctx context.Context, p *plan, alone, low bool) *pipeline {
	ctx, cancel := context.WithCancel(ctx)
	r := &pipeline{
		t: t, plan: p, low: low, stop: cancel,
		pages: make(chan chan page, pagesInMemory),
		room:  make(chan struct{}, pagesInMemory),
	}
	if alone {
		for range pagesInMemory - 1 {
			r.room <- struct{}{}
		}
	}
	go r.run(ctx)
	return r
}

// together ends reading one page alone.
func (r *pipeline) together() {
	for range pagesInMemory - 1 {
		<-r.room
	}
}

// run starts a reader for each page as soon as the page has room in memory.
func (r *pipeline) run(ctx context.Context) {
	defer close(r.pages)
	for i := range r.plan.refs {
		select {
		case r.room <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil { // select may have chosen room although the context ended
			return
		}
		read := make(chan page, 1)
		r.pages <- read // never blocks: pages has as much capacity as room
		go func() {
			if r.low {
				priority.Lower()
			}
			r.clock.begin()
			pg := r.readInto(ctx, i)
			r.clock.end()
			read <- pg
		}()
	}
}

// done passes a page's room in memory on to the next page.
func (r *pipeline) done(pg *page) {
	pg.close()
	if pg.buffer != nil {
		r.t.buffers.Put(pg.buffer)
	}
	<-r.room
}

// close stops the readers, waits for their end, and drops the pages that they read.
func (r *pipeline) close() {
	r.stop()
	r.drain()
}

// drain reads the rest of the plan, and drops the pages.
func (r *pipeline) drain() {
	for read := range r.pages {
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
	return pg
}

// readPage reads a page, and keeps its file open where the cache is a [RowPlacer].
func (t *TieredCausal) readPage(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, buf []byte, how ...diskstore.ReadOption) (*diskstore.Placed, error) {
	if _, ok := t.groups[0].Rows.(RowPlacer); !ok { // all groups are, or none
		return nil, t.opts.Store.Read(ctx, ref, tokens, layout, buf, how...)
	}
	placed, err := t.opts.Store.ReadPlaced(ctx, ref, tokens, layout, buf, how...)
	if errors.Is(err, diskstore.ErrNotPlaced) {
		t.notPlaced(err)
		return nil, nil
	}
	return placed, err
}
