package kvcache

import (
	"cmp"
	"context"
	"errors"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/priority"
)

// fill reads the plan's pages and writes their rows. fill returns the position in the plan's
// text before which all rows are in the cells. While other slots compute, fill uses one processor at most,
// at a lower priority.
func (t *TieredCausal) fill(ctx context.Context, p *plan) (held int, err error) {
	t.queue.yield(1)
	defer t.queue.yield(-1)
	if !t.flights.busy(p.seq) {
		return t.fillCells(ctx, p, false)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		priority.Lower()
		held, err = t.fillCells(ctx, p, true)
	}()
	<-done
	return held, err
}

func (t *TieredCausal) fillCells(ctx context.Context, p *plan, busy bool) (held int, err error) {
	if err := t.flights.await(ctx, p.free); err != nil {
		return p.base, err
	}
	if t.opts.Poison {
		t.poison(p.cells, poison)
		defer func() { t.poison(p.cellsFrom(held), 0) }()
	}

	pace := t.pace(p)
	alone := busy || pace.alone()
	r := t.reader.pages(ctx, p, alone, busy)
	defer r.close()
	held = p.base
	pace.begin(r.clock.took())
	for read := r.Next(); read != nil; read = r.Next() {
		pg, there := pace.wait(read)
		if !there {
			r.Stop()
			pg = <-read // the page itself is not used
			r.done(&pg)
			t.giveUp(p, pg.index)
			return held, nil
		}
		err := cmp.Or(pg.err, pg.write)
		if err == nil && pg.placed != nil {
			t.reader.place(&pg)
		}
		if err != nil && !errors.Is(err, pagefile.ErrDamaged) {
			r.Stop() // before done makes room for another read
		}
		if alone && !busy {
			r.Together()
			alone = false
		}
		r.done(&pg)
		if err != nil {
			// After damage the rest is still read, so that every damaged page is set aside:
			// a damaged page left in place would count as stored when the prompt's pages
			// are sealed again.
			r.drain()
			return held, err
		}
		t.countRead(pg.ref.Tier)
		if held = p.pageEnd(pg.index); !pace.next() && held < p.end {
			t.giveUp(p, pg.index+1)
			return held, nil
		}
	}
	return held, ctx.Err()
}

// poison fills cells with a byte.
func (t *TieredCausal) poison(cells [][]int32, with byte) {
	if err := t.caches.overwrite(cells, with); err != nil {
		t.log.Error("kv tier: poison cells", "error", err)
	}
}

// destination is where a page's rows go: for group g, the rows from row from[g] on go to cells[g].
type destination struct {
	from  []int
	cells [][]int32
}

// destination returns the cells of a page's rows. Cells must be reserved.
func (p *plan) destination(page int) destination {
	d := destination{make([]int, len(p.cells)), make([][]int32, len(p.cells))}
	start, end := int(p.refs[page].Start), p.pageEnd(page)
	for g := range p.cells {
		if begin := max(start, p.begin[g]); begin < end {
			d.from[g], d.cells[g] = begin-start, p.cells[g][begin-p.begin[g]:end-p.begin[g]]
		}
	}
	return d
}

// cellsFrom returns the plan's cells of the positions from held on. Attention without flash
// attention multiplies the rows of free cells by zero, so that NaN must not stay in them.
func (p *plan) cellsFrom(held int) [][]int32 {
	cells := make([][]int32, len(p.cells))
	for g := range cells {
		cells[g] = p.cells[g][min(len(p.cells[g]), max(0, held-p.begin[g])):]
	}
	return cells
}
