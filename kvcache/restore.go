package kvcache

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/ollama/ollama/model/input"

	"github.com/kvtier/kvtier/diskstore"
)

// pendingWait bounds how long a restore waits for pages of its prompt that were sealed and
// are not written yet. Past it they are computed again.
const pendingWait = 2 * time.Second

// Restored says what a restore did.
type Restored struct {
	// Held is how many leading tokens of the prompt the slot holds now.
	Held int
	// Tokens is how many of them came from the store.
	Tokens int
	// Bytes is about what was read for them.
	Bytes int64
	// Tiers names where from, in order of first use.
	Tiers []string
	// Took is the time from the lookup to the last row.
	Took time.Duration
}

// Restore extends what a slot holds of a prompt from the store. The slot is reserved for
// the request and holds the prompt's first have tokens. lock is the runner's: held on
// entry and on return, released while pages are looked up and read. The last token of the
// prompt is always left to compute.
//
// The error is the context's; any failure of the store only makes Held smaller.
func (t *TieredCausal) Restore(ctx context.Context, lock sync.Locker, seq, have int, prompt []*input.Input) (Restored, error) {
	started := time.Now()
	result := Restored{Held: have}
	limit := len(prompt) - 1 // the last token is computed, for its logits
	if t.stateful() && have > 0 && !t.opts.States.HasState(seq) {
		t.clear(seq, &result) // the rows that are left lead nowhere
	}
	whole, err := t.restore(ctx, lock, seq, limit, prompt, &result)
	if !whole && !t.partial() {
		// A window or a state of another position is another one: what came in is no use.
		limit = result.Held
		t.clear(seq, &result)
		if err != nil { // a damaged page: what is before it may serve
			if whole, _ = t.restore(ctx, lock, seq, limit, prompt, &result); !whole {
				t.clear(seq, &result)
			}
		}
	}
	result.Took = time.Since(started)
	t.restored(&result)
	if ctx.Err() != nil {
		return result, ctx.Err()
	}
	if errors.Is(err, diskstore.ErrNotFound) {
		t.log.Debug("kv tier: restore stopped early, a page was replaced or evicted meanwhile", "slot", seq, "restored", result.Tokens, "error", err)
	} else if err != nil {
		t.log.Warn("kv tier: restore stopped early, the rest of the prompt is computed", "slot", seq, "restored", result.Tokens, "error", err)
	}
	return result, nil
}

// clear empties a slot.
func (t *TieredCausal) clear(seq int, result *Restored) {
	_ = t.Remove(seq, 0, math.MaxInt32) // freeing to the end of a sequence cannot fail
	*result = Restored{}
}

// restore makes one plan and carries it out as far as it can. It reports whether that was
// to its end: if not, the slot holds what result says in groups that keep everything.
func (t *TieredCausal) restore(ctx context.Context, lock sync.Locker, seq, limit int, prompt []*input.Input, result *Restored) (whole bool, err error) {
	have := result.Held
	p, ok := t.planRestore(ctx, lock, seq, have, limit, prompt)
	if !ok {
		return true, nil
	}
	if err := t.takeCells(&p, seq, have); err != nil {
		t.log.Debug("kv tier: no room to restore", "slot", seq, "error", err)
		result.Held = p.base
		return false, nil
	}

	lock.Unlock()
	held, err := t.fill(ctx, &p)
	lock.Lock()

	result.Held = t.publish(&p, seq, held)
	result.Tokens = max(0, result.Held-p.base)
	for i, ref := range p.refs {
		if int(ref.Start) < result.Held {
			result.Bytes += p.bytes(&t.geometry, i)
			result.addTier(ref.Tier)
		}
	}
	return held == p.end, err
}

func (r *Restored) addTier(tier string) {
	for _, have := range r.Tiers {
		if have == tier {
			return
		}
	}
	r.Tiers = append(r.Tiers, tier)
}

// takeCells reserves the cells of a plan, after freeing those of rows it replaces, and
// notes which flights may still write into them. The runner's lock is held.
func (t *TieredCausal) takeCells(p *plan, seq, have int) error {
	if p.base < have {
		if err := t.Remove(seq, int32(p.base), math.MaxInt32); err != nil {
			return fmt.Errorf("free rows that do not follow from the prompt: %w", err)
		}
	}
	p.cells = make([][]int32, len(t.groups))
	for g := range t.groups {
		cells, err := t.groups[g].ReserveCells(seq, int32(p.begin[g]), int32(p.end), p.preferred[g])
		if err != nil {
			t.free(seq, p.base)
			return err
		}
		p.cells[g] = cells
	}
	if p.state {
		if err := t.opts.States.BeginState(seq); err != nil {
			t.free(seq, p.base)
			return err
		}
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	p.lastBuilt = t.lastBuilt()
	return nil
}

// free gives back the cells of positions from begin on in all groups. It cannot fail.
func (t *TieredCausal) free(seq, begin int) {
	for g := range t.groups {
		_ = t.groups[g].Remove(seq, int32(begin), math.MaxInt32)
	}
}

// landFlights waits until every flight up to id is computed. t.mu is held.
func (t *TieredCausal) landFlights(ctx context.Context, id int) error {
	stop := context.AfterFunc(ctx, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.landed.Broadcast()
	})
	defer stop()
	for len(t.flights) > 0 && t.flights[0].id <= id {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		t.landed.Wait()
	}
	return nil
}

// lastBuilt is the id of the newest flight. t.mu is held.
func (t *TieredCausal) lastBuilt() int {
	if len(t.flights) == 0 {
		return -1
	}
	return t.flights[len(t.flights)-1].id
}

// publish gives the slot's mirror what came in and frees cells that got nothing. The
// runner's lock is held. It returns how many leading tokens of the prompt the slot holds.
func (t *TieredCausal) publish(p *plan, seq, held int) int {
	if held < p.end {
		t.free(seq, held)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slot(seq)
	s.truncate(p.base)
	if len(s.tokens) < p.base {
		s.broken = true
		return held
	}
	s.broken = false
	if p.state && held == p.end {
		s.stateAt, s.stateSaved = held, held
	}
	s.tokens = append(s.tokens, p.prompt.tokens[p.base:held]...)
	for _, m := range p.prompt.media {
		if at := int(m.Offset); at >= p.base && at < held {
			s.media = append(s.media, m)
		}
	}
	for g := range s.cells {
		t.publishCells(p, s, g, held)
	}
	s.trimKeys(t.opts.PageTokens)
	t.extendKeys(s)
	for _, ref := range p.refs {
		if full := !ref.Tail && int(ref.Start)+ref.Tokens <= held; full && s.sealed == int(ref.Start)/t.opts.PageTokens {
			s.sealed++
		}
	}
	if held == p.end && len(p.refs) > 0 && p.refs[len(p.refs)-1].Tail {
		s.tailTokens = held
	}
	return held
}

// publishCells notes where a group's rows of positions [base, held) are. Positions that it
// would have forgotten have none.
func (t *TieredCausal) publishCells(p *plan, s *slot, g, held int) {
	if p.begin[g] > p.base {
		s.from[g] = min(p.begin[g], held)
	}
	s.from[g] = max(s.from[g], t.groups[g].oldest(p.end))
	for len(s.cells[g]) < min(p.begin[g], held) {
		s.cells[g] = append(s.cells[g], -1)
	}
	s.cells[g] = append(s.cells[g], p.cells[g][:held-len(s.cells[g])]...)
}

func (t *TieredCausal) restored(r *Restored) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.Tokens > 0 {
		t.stats.Restores++
		t.stats.RestoredTokens += int64(r.Tokens)
		t.stats.RestoredBytes += r.Bytes
	}
}

// poison fills cells with NaN: 0xff bytes are a NaN in f16 and as the scale of a quantized
// block.
func (t *TieredCausal) poison(cells [][]int32) {
	for i, s := range t.geometry.sections {
		if s.Kind == diskstore.KindCell || !s.Kind.PerToken() {
			continue
		}
		g := t.geometry.of[i]
		rows := make([]byte, int(s.RowBytes)*len(cells[g]))
		for i := range rows {
			rows[i] = 0xff
		}
		if err := t.groups[g].WriteRows(int(s.Layer), s.Kind == diskstore.KindV, cells[g], rows); err != nil {
			t.log.Error("kv tier: poison cells", "error", err)
		}
	}
}
