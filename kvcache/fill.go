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
func (r *restoring) fill(ctx context.Context, p *plan) (held int, err error) {
	r.queue.yield(1)
	defer r.queue.yield(-1)
	if !r.flights.busy(p.seq) {
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
	if err := r.flights.await(ctx, p.free); err != nil {
		return p.base, err
	}
	if r.poison {
		r.overwrite(p.cells, poison)
		defer func() { r.overwrite(p.cellsFrom(held), 0) }()
	}

	pace := r.pace(p)
	alone := busy || pace.alone()
	line := r.reader.pages(ctx, p, alone, busy)
	defer line.close()
	held = p.base
	pace.begin(line.clock.took())
	for read := line.Next(); read != nil; read = line.Next() {
		pg, there := pace.wait(read)
		if !there {
			line.Stop()
			pg = <-read // the page itself is not used
			line.done(&pg)
			r.giveUp(p, pg.index)
			return held, nil
		}
		err := cmp.Or(pg.err, pg.write)
		if err == nil && pg.placed != nil {
			r.reader.place(&pg)
		}
		if err != nil && !errors.Is(err, pagefile.ErrDamaged) {
			line.Stop() // before done makes room for another read
		}
		if alone && !busy {
			line.Together()
			alone = false
		}
		line.done(&pg)
		if err != nil {
			// After damage the rest is still read, so that every damaged page is set aside:
			// a damaged page left in place would count as stored when the prompt's pages
			// are sealed again.
			line.drain()
			return held, err
		}
		countRead(r.meter, pg.ref.Tier)
		if held = p.pageEnd(pg.index); !pace.next() && held < p.end {
			r.giveUp(p, pg.index+1)
			return held, nil
		}
	}
	return held, ctx.Err()
}

// overwrite fills cells with a byte.
func (r *restoring) overwrite(cells [][]int32, with byte) {
	if err := r.caches.overwrite(cells, with); err != nil {
		r.log.Error("kv tier: poison cells", "error", err)
	}
}
