package kvcache

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/internal/priority"
)

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

// reader reads the pages of plans, and writes their rows.
type reader struct {
	store    *disk
	caches   *caches
	gate     *engine.Gate
	log      *slog.Logger
	notFound func(seq int, refs []diskstore.Ref) // called with pages that a slot's look-up found and that lack rows
	unplaced sync.Once                           // logs once why a page was not placed
}

// pages begins to read a plan. With low, it reads one page at a time, at a lower priority. Rows are
// written to the plan's cells, which must be free. Only pages that are handed over count.
func (d *reader) pages(ctx context.Context, p *plan, low bool) *engine.Reading[page] {
	gate := *d.gate
	if p.ahead {
		gate.Rates = gate.Rates.Apart() // the loading of the weights may keep the disk busy
	}
	return engine.Read(ctx, &gate, p.begun(d.caches), low, func(ctx context.Context, i int) page {
		return d.readInto(ctx, p, i, low)
	}, func(pg page) { d.drop(p, &pg) })
}

// drop notes what reading a page has shown. A page without some group's rows, as a server with a longer
// context stores it, does not count as found, nor do those after it: Put replaces them.
func (d *reader) drop(p *plan, pg *page) {
	pg.close()
	if errors.Is(pg.err, pagefile.ErrMismatch) {
		d.notFound(p.seq, p.refs[pg.index:])
	}
	d.store.NoteRead(pg.ref, pg.err)
}

// readInto reads one page of a plan into its cells. The rows are dropped if the plan has none.
func (d *reader) readInto(ctx context.Context, p *plan, i int, low bool) page {
	ref := p.refs[i]
	pg := page{index: i, ref: ref}
	if pg.layout, pg.err = p.layout(&d.caches.geometry, i); pg.err != nil {
		return pg
	}
	pg.dest = p.destination(i)
	sections := pg.layout.Sections()
	use := func(i int, rows []byte) error {
		if p.cells == nil {
			return nil
		}
		if err := scatter(d.caches.groups, d.caches.states, sections[i], rows, pg.dest); err != nil {
			return &writeError{err}
		}
		return nil
	}
	pg.placed, pg.err = d.page(ctx, ref, p.prompt.tokens[ref.Start:ref.End()], pg.layout, diskstore.Into{Use: use, Gently: low})
	if failed := (*writeError)(nil); errors.As(pg.err, &failed) {
		pg.err, pg.write = nil, failed
	}
	return pg
}

// writeError is an error of writing rows: it says nothing of the page.
type writeError struct{ error }

func (e *writeError) Unwrap() error { return e.error }

// page reads a page. Its file stays open if the cache is a [RowPlacer] and the file has plain rows.
func (d *reader) page(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) (*diskstore.Placed, error) {
	if _, ok := d.caches.groups[0].Rows.(RowPlacer); ok && !ref.Lossy { // all groups are, or none
		into.Placed = new(diskstore.Placed)
	}
	err := d.store.Read(ctx, ref, tokens, layout, into)
	if err != nil || into.Placed == nil {
		return nil, err
	}
	if into.Placed.File == nil {
		d.notPlaced(into.Placed.Err)
		return nil, nil
	}
	return into.Placed, nil
}

// dropping reads a page of a plan whose rows nobody wants.
func (d *reader) dropping(of *plan) func(ctx context.Context, page int) error {
	p := *of
	p.state, p.cells = false, nil
	return func(ctx context.Context, i int) error {
		pg := d.readInto(ctx, &p, i, false)
		d.drop(&p, &pg)
		return pg.err
	}
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

// notPlaced logs once why stored rows will be written to the spill file again, which costs time only.
func (d *reader) notPlaced(err error) {
	d.unplaced.Do(func() {
		d.log.Debug("kv tier: a stored page's rows are not used in place", "reason", err)
	})
}

// fill reads the plan's pages and writes their rows, and returns the position before which all are in
// the cells. While other slots compute, it uses one processor at most, at a lower priority.
func (r *restoring) fill(ctx context.Context, p *plan) (held int, err error) {
	r.queue.yield(1)
	defer r.queue.yield(-1)
	if !r.inFlight.busy(p.seq) {
		return r.fillCells(ctx, p, false)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		priority.Lower()
		held, err = r.fillCells(ctx, p, true)
	}()
	<-done
	return held, err
}

func (r *restoring) fillCells(ctx context.Context, p *plan, busy bool) (held int, err error) {
	if err := r.inFlight.await(ctx, p.free); err != nil {
		return p.base, err
	}
	if r.poison {
		r.overwrite(p.cells, poison)
		defer func() { r.overwrite(p.cellsFrom(held), 0) }()
	}

	reading := r.reader.pages(ctx, p, busy)
	held = p.base
	used := 0
	for i, pg := range reading.Pages() {
		err = cmp.Or(pg.err, pg.write)
		if err == nil && pg.placed != nil {
			r.reader.place(&pg)
		}
		r.reader.drop(p, &pg)
		if err != nil {
			break
		}
		held, used = p.pageEnd(i), i+1
	}
	if errors.Is(err, pagefile.ErrDamaged) {
		reading.Examine()
	}
	reading.Close()
	if reading.GivenUp() {
		r.skip(p, used)
		return held, nil
	}
	return held, cmp.Or(err, ctx.Err())
}

// overwrite fills cells with a byte.
func (r *restoring) overwrite(cells [][]int32, with byte) {
	if err := r.caches.overwrite(cells, with); err != nil {
		r.log.Error("kv tier: poison cells", "error", err)
	}
}
