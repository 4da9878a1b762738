package kvcache

import (
	"context"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/priority"
)

// pagesInMemory is how many pages a restore holds at a time: one that is being written to its
// cells, and those that are read meanwhile. Two are read at once then, so that the disk is not
// idle while the last bytes of a page are checked.
const pagesInMemory = 3

// page is one page on its way from the store to its cells.
type page struct {
	index   int // in the plan
	ref     diskstore.Ref
	layout  pagefile.Layout
	buffer  *[]byte
	payload []byte            // of the buffer
	placed  *diskstore.Placed // the payload's place on disk; nil when it has none of use
	err     error
}

// close lets go of the page's file.
func (pg *page) close() {
	if pg.placed != nil {
		pg.placed.Close() // nothing was written to it
	}
}

// pipeline reads the pages of a plan in the order of the chain, while those before are written
// to their cells.
type pipeline struct {
	t     *TieredCausal
	plan  *plan
	pages chan chan page // each page in turn, when it is read
	room  chan struct{}  // as much as pages in memory
	low   bool           // readers stand behind who else wants processors
	stop  context.CancelFunc
	clock readClock
}

// readPages begins to read. When alone is set it reads the first page only, until together is
// called. When low is set it stands behind who else wants processors.
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

// run starts a reader for each page as soon as there is room for it.
func (r *pipeline) run(ctx context.Context) {
	defer close(r.pages)
	for i := range r.plan.refs {
		select {
		case r.room <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil { // also when there was room
			return
		}
		read := make(chan page, 1)
		r.pages <- read // is as long as there is room
		go func() {
			if r.low {
				priority.Lower()
			}
			r.clock.begin()
			pg := r.t.readInto(ctx, r.plan, i)
			r.clock.end()
			read <- pg
		}()
	}
}

// done gives a page's room in memory to the next.
func (r *pipeline) done(pg *page) {
	pg.close()
	if pg.buffer != nil {
		r.t.buffers.Put(pg.buffer)
	}
	<-r.room
}

// close ends the readers and lets go of what they have read. When it returns there are none.
func (r *pipeline) close() {
	r.stop()
	r.drain()
}

// drain reads what is left of the plan, and keeps nothing of it.
func (r *pipeline) drain() {
	for read := range r.pages {
		pg := <-read
		r.done(&pg)
	}
}

// readClock measures the time during which anything is read: reads overlap, and in between
// they wait for room.
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

// took returns the time up to now.
func (c *readClock) took() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running > 0 {
		return c.total + time.Since(c.since)
	}
	return c.total
}

// readInto reads one page of a plan into a buffer.
func (t *TieredCausal) readInto(ctx context.Context, p *plan, i int) page {
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
	pg.placed, pg.err = t.readPage(ctx, ref, p.prompt.tokens[ref.Start:int(ref.Start)+ref.Tokens], pg.layout, pg.payload)
	return pg
}
