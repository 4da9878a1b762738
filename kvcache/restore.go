package kvcache

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/ollama/ollama/model/input"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
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
	// Shifted is how many of those were computed at another position, with other text before
	// them. What follows from them is not exact, and not stored.
	Shifted int
	// Bytes is about what was read for them.
	Bytes int64
	// Tiers names where from, in order of first use.
	Tiers []string
	// Took is the time from the lookup to the last row.
	Took time.Duration
}

// Settle is called with the runner's lock held, and lets go of it while it waits: in a model
// with recurrent state, for the batches that are built. When a sequence ends one of its
// batches is still under way, which goes on writing to the slot's state: to what the next
// request begins with, were it there before. The error is the context's.
func (t *TieredCausal) Settle(ctx context.Context, lock sync.Locker) (err error) {
	if t.stateful() {
		unlocked(lock, func() { err = t.awaitBuilt(ctx) })
	}
	return err
}

// unlocked calls f without the runner's lock, which is held. It alone lets go of that lock.
func unlocked(lock sync.Locker, f func()) {
	lock.Unlock()
	defer lock.Lock()
	f()
}

// restoring is one restore. The runner's lock is held in all of its methods: what they do
// without it is in functions that they give to unlocked.
type restoring struct {
	*TieredCausal
	lock   sync.Locker
	hold   func(tokens int)
	seq    int
	prompt prompt // up to the first input without identity
	limit  int    // how many of the prompt's tokens may be restored
	result Restored
}

// unlocked calls f without the runner's lock. What the slot holds by then is told to the
// runner first.
func (r *restoring) unlocked(f func()) {
	r.hold(r.result.Held)
	unlocked(r.lock, f)
}

// Restore is called with the runner's lock held, and lets go of it while it looks pages up and
// reads them. It extends what a slot holds of a prompt from the store. The slot is reserved for
// the request and holds the prompt's first have tokens. The last token of the prompt is always
// left to compute.
//
// Other requests may be given the beginning of what the slot holds while the lock is
// released. So hold is called, with the lock held, before each release and before the
// return: it tells the runner how many tokens of the prompt are in the slot's cells now,
// which may be fewer than before.
//
// With [Options.Runs] it goes on with text that was computed elsewhere.
//
// The error is the context's; any failure of the store only makes Held smaller.
func (t *TieredCausal) Restore(ctx context.Context, lock sync.Locker, seq, have int, prompt []*input.Input, hold func(tokens int)) (Restored, error) {
	started := time.Now()
	r := &restoring{TieredCausal: t, lock: lock, hold: hold, seq: seq, result: Restored{Held: have}}
	defer func() { hold(r.result.Held) }()
	r.prompt, _ = t.opts.Media.read(prompt)
	r.limit = min(len(prompt)-1, len(r.prompt.tokens)) // the last token is computed, for its logits
	if t.stateful() && have > 0 && !t.opts.States.HasState(seq) {
		r.clear() // the rows that are left lead nowhere
	}
	r.recheck(ctx)
	err := r.restoreExact(ctx)
	if err == nil && t.opts.Runs != nil && !t.stateful() {
		err = r.reuse(ctx)
	}
	r.result.Took = time.Since(started)
	r.count()
	if ctx.Err() != nil {
		return r.result, ctx.Err()
	}
	if errors.Is(err, tier.ErrNotFound) {
		t.log.Debug("kv tier: restore stopped early, a page was replaced or evicted meanwhile", "slot", seq, "restored", r.result.Tokens, "error", err)
	} else if err != nil {
		t.log.Warn("kv tier: restore stopped early, the rest of the prompt is computed", "slot", seq, "restored", r.result.Tokens, "error", err)
	}
	return r.result, nil
}

// restoreExact restores what follows from the prompt's beginning. Where it could not end as
// planned the slot is empty, unless it can be given up at any position.
func (r *restoring) restoreExact(ctx context.Context) error {
	_, complete, err := r.extend(ctx, r.chain(r.limit))
	if complete || r.divisible() {
		return err
	}
	// A window or a state of another position is another one: what came in is no use.
	limit := r.result.Held
	r.clear()
	if err != nil { // a damaged page: what is before it may serve
		if _, complete, _ = r.extend(ctx, r.chain(limit)); !complete {
			r.clear()
		}
	}
	return err
}

// clear empties the slot.
func (r *restoring) clear() {
	_ = r.Remove(r.seq, 0, math.MaxInt32) // freeing to the end of a sequence cannot fail
	r.result = Restored{}
}

// lookUp looks pages up in the store, without the runner's lock, and plans what to do with
// them. It reports whether there is anything.
type lookUp func(ctx context.Context) (plan, bool)

// extend extends the slot by what a lookup finds, nil for nothing. It reports whether that
// was anything, and whether all of it came in: if not, the slot holds what result says in
// groups that keep everything.
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

// takeCells reserves the cells of a plan, after freeing those of rows it replaces, and
// begins to wait for what may still use them. Of what follows the plan's base no row is
// written then, and the slot holds none.
func (r *restoring) takeCells(p *plan) (err error) {
	base, have := p.wanted(p.base), r.result.Held
	r.result.Held = base
	if p.state {
		r.result.Held = 0 // the state after base is being replaced
	}
	if base < have {
		if err := r.Remove(p.seq, int32(base), math.MaxInt32); err != nil {
			return fmt.Errorf("free rows that do not follow from the prompt: %w", err)
		}
	}
	defer func() {
		if err != nil {
			r.free(p.seq, base)
		}
	}()
	p.cells = make([][]int32, len(r.groups))
	for g := range r.groups {
		begin, end := p.wanted(p.begin[g]), p.wanted(p.end)
		p.cells[g], err = r.groups[g].ReserveCells(p.seq, int32(begin), int32(end), p.preferred[g])
		if err != nil {
			return err
		}
	}
	if p.state {
		if err := r.opts.States.BeginState(p.seq); err != nil {
			return err
		}
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.slotLocked(p.seq)
	for g := range r.groups { // to make room for the end of the plan these became free
		s.from[g] = max(s.from[g], min(r.groups[g].oldest(p.wanted(p.end)), len(s.tokens)))
	}
	p.free = r.whenComputedLocked()
	return nil
}

// free gives back, with the runner's lock held, the cells of positions from begin on in all
// groups. It cannot fail.
func (t *TieredCausal) free(seq, begin int) {
	for g := range t.groups {
		_ = t.groups[g].Remove(seq, int32(begin), math.MaxInt32)
	}
}

// publish gives the slot's mirror the first tokens of a plan, which came in, and frees the
// cells of the others.
func (r *restoring) publish(p *plan, held int) {
	if held < p.end {
		r.free(p.seq, p.wanted(held))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noteDroppedLocked()
	s, base := r.slotLocked(p.seq), p.wanted(p.base)
	r.result.Held = p.wanted(held)
	r.result.Tokens += max(0, held-p.base)
	if p.by != 0 {
		s.broken = s.broken || held > p.base
		r.result.Shifted += r.result.Held - base
	} else {
		r.publishExactLocked(p, s, held)
	}
	for i, ref := range p.refs {
		if int(ref.Start) >= held {
			break
		}
		r.result.Bytes += p.bytes(&r.geometry, i)
		if !slices.Contains(r.result.Tiers, ref.Tier) {
			r.result.Tiers = append(r.result.Tiers, ref.Tier)
		}
		if start, end := int(ref.Start), int(ref.Start)+ref.Tokens; !ref.Tail && end <= len(p.prompt.tokens) {
			r.learn(ref.Key, &pagefile.Page{
				Parent: ref.Parent, Start: ref.Start, Tokens: p.prompt.tokens[start:end],
				Media: pagefile.MediaWithin(p.prompt.media, start, ref.Tokens),
			})
		}
	}
}

// publishExactLocked notes tokens and cells that follow from the prompt's beginning, and which
// pages are stored.
func (t *TieredCausal) publishExactLocked(p *plan, s *slot, held int) {
	s.truncate(p.base)
	if len(s.tokens) < p.base {
		s.broken = true
		return
	}
	s.broken = false
	if p.state && held == p.end {
		s.stateAt, s.state = held, saved{tokens: held}
	}
	s.tokens = append(s.tokens, p.prompt.tokens[p.base:held]...)
	for _, m := range p.prompt.media {
		if at := int(m.Offset); at >= p.base && at < held {
			s.media = append(s.media, m)
		}
	}
	for g := range s.cells {
		t.publishCellsLocked(p, s, g, held)
	}
	s.trimKeys(t.opts.PageTokens)
	for _, ref := range slices.Concat(p.passed, p.refs) {
		switch page := int(ref.Start) / t.opts.PageTokens; {
		case ref.Tail || int(ref.Start)+ref.Tokens > held || page > len(s.keys):
		case page == len(s.keys):
			s.keys, s.pages = append(s.keys, ref.Key), append(s.pages, pageStored)
		default:
			s.pages[page] = pageStored
		}
	}
	t.extendKeysLocked(s)
	if last := len(p.refs) - 1; held == p.end && last >= 0 && (p.refs[last].Tail || held < int(p.refs[last].Start)+p.refs[last].Tokens) {
		s.tail = saved{tokens: held} // is stored, perhaps in a page that goes on
	}
}

// publishCellsLocked notes where a group's rows of positions [base, held) are. Positions that it
// would have forgotten have none.
func (t *TieredCausal) publishCellsLocked(p *plan, s *slot, g, held int) {
	if p.begin[g] > p.base {
		s.from[g] = min(p.begin[g], held)
	}
	s.from[g] = max(s.from[g], t.groups[g].oldest(p.end))
	for len(s.cells[g]) < min(p.begin[g], held) {
		s.cells[g] = append(s.cells[g], -1)
	}
	s.cells[g] = append(s.cells[g], p.cells[g][:held-len(s.cells[g])]...)
}

// count adds what was restored to the counters.
func (r *restoring) count() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.result.Tokens > 0 {
		r.stats.Restores++
		r.stats.RestoredTokens += int64(r.result.Tokens)
		r.stats.RestoredBytes += r.result.Bytes
		r.stats.ShiftedTokens += int64(r.result.Shifted)
	}
}
