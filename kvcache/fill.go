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
