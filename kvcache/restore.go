package kvcache

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/why"
)

// restoreExact restores pages that follow from the prompt's beginning. After a failure the
// slot is empty, unless the slot is divisible.
func (r *restoring) restoreExact(ctx context.Context) error {
	_, complete, err := r.extend(ctx, r.chain(r.limit))
	if complete || r.caches.divisible() {
		return err
	}
	// A window and a state serve one position only: the rows that came in are of no use.
	limit := r.result.Held
	r.clear()
	if err != nil { // after a damaged page, try the pages before it
		if _, complete, _ = r.extend(ctx, r.chain(limit)); !complete {
			r.clear()
		}
	}
	return err
}

// extend extends the slot by the pages that a lookup finds; a nil lookup finds none. found:
// there were pages. complete: all of them came in; otherwise the slot holds result.Held
// tokens in the groups that keep all positions.
func (r *restoring) extend(ctx context.Context, look lookUp) (found, complete bool, err error) {
	if look == nil {
		return false, true, nil
	}
	var p plan
	r.unlocked(func() { p, found = look(ctx) })
	if !found {
		return false, true, nil
	}
	if err := r.takeCells(&p); err != nil {
		r.log.Debug("kv tier: no room to restore", "slot", r.seq, "error", err)
		r.why.unread(&p, 0, why.UnreadRoom)
		return true, false, nil
	}
	var held int
	r.unlocked(func() { held, err = r.fill(ctx, &p) })
	if p.by != 0 && held > p.base {
		if turned := r.turn(ctx, &p, held); turned != nil {
			held, err = p.base, turned
		}
	}
	r.publish(&p, held)
	return true, held == p.end, err
}

// whenIdle calls run, which computes a graph of its own. No other graph is computed meanwhile: no batch,
// and no graph of the runner's beside one, which waits until BatchDone of the batch before has returned.
// The error is run's, or the context's when run was not called.
func (r *restoring) whenIdle(ctx context.Context, run func() error) (err error) {
	r.mu.Lock()
	job := r.inFlight.afterLocked(idleJob{run: run})
	r.mu.Unlock()
	select {
	case err = <-job.done:
	default:
		r.unlocked(func() { err = r.inFlight.await(ctx, job) })
	}
	return err
}

// takeCells frees the cells of rows that the plan replaces, reserves the plan's, and begins to wait for
// batches that may still use these. Afterwards the slot holds no row past the plan's base.
func (r *restoring) takeCells(p *plan) (err error) {
	base, have := p.wanted(p.base), r.result.Held
	r.cut(base)
	if p.state {
		r.result.Held = 0 // the state after base is being replaced
	}
	if base < have {
		if err := r.remove(p.seq, int32(base), math.MaxInt32); err != nil {
			return fmt.Errorf("free rows that do not follow from the prompt: %w", err)
		}
	}
	defer func() {
		if err != nil {
			r.caches.free(p.seq, base)
		}
	}()
	p.cells = make([][]int32, len(r.caches.groups))
	for g := range r.caches.groups {
		begin, end := p.wanted(p.begin[g]), p.wanted(p.end)
		p.cells[g], err = r.caches.groups[g].ReserveCells(p.seq, int32(begin), int32(end), p.preferred[g])
		if err != nil {
			return err
		}
	}
	if p.state {
		if err := r.caches.states.BeginState(p.seq); err != nil {
			return err
		}
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.slots.at(p.seq)
	r.caches.lost(s, p.wanted(p.end)) // ReserveCells may have freed their cells
	p.free = r.inFlight.whenComputedLocked(r.device)
	return nil
}

// turn rotates K of the plan's rows before position held by the plan's distance.
func (r *restoring) turn(ctx context.Context, p *plan, held int) error {
	return r.whenIdle(ctx, func() error {
		for g := range r.caches.groups {
			if n := held - p.begin[g]; n > 0 {
				if err := r.caches.groups[g].ShiftRows(p.cells[g][:n], int32(p.by)); err != nil {
					return err
				}
			}
		}
		r.device.synchronize()
		return nil
	})
}

// publish adds positions [base, held) of a plan, whose rows came in, to the slot's mirror,
// and frees the cells from held on.
func (r *restoring) publish(p *plan, held int) {
	if held < p.end {
		r.caches.free(p.seq, p.wanted(held))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sealer.noteDropped()
	s, base := r.slots.at(p.seq), p.wanted(p.base)
	r.result.Held = p.wanted(held)
	r.from = p.addTo(r.from, held)
	r.result.Lossy = r.from.Lossy()
	r.result.Tokens += max(0, held-p.base)
	if p.by != 0 {
		s.broken = s.broken || held > p.base
		r.result.Shifted += r.result.Held - base
	} else {
		exact := min(held, p.lossyFrom())
		s.publish(p, exact, r.caches.groups, r.identity.reach > 0)
		if held > exact {
			s.broken, s.lossy = true, true
		}
	}
	for i, ref := range p.refs {
		if int(ref.Start) >= held {
			break
		}
		bytes, _ := p.bytes(&r.caches.geometry, i)
		r.result.Bytes += bytes
		r.meter.Add(moved(ref.Tier, telemetry.PlaceSlot), 1)
		if !slices.Contains(r.result.Tiers, ref.Tier) {
			r.result.Tiers = append(r.result.Tiers, ref.Tier)
		}
		if start, end := int(ref.Start), int(ref.Start)+ref.Tokens; ref.Whole() && !ref.Lossy && end <= len(p.prompt.tokens) {
			r.runs.Learn(ref.Key, &pagefile.Page{
				Parent: ref.Parent, Start: ref.Start, Tokens: p.prompt.tokens[start:end],
				Media: pagefile.MediaWithin(p.prompt.media, start, ref.Tokens),
			})
		}
	}
}
