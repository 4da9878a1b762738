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

// Settle waits, in a model with recurrent state, for the batches that are built. When a
// sequence ends one of its batches is still under way, which goes on writing to the slot's
// state: to what the next request begins with, were it there before. lock is the runner's:
// held on entry and on return, released while this waits. The error is the context's.
func (t *TieredCausal) Settle(ctx context.Context, lock sync.Locker) error {
	if !t.stateful() {
		return nil
	}
	lock.Unlock()
	defer lock.Lock()
	return t.landBuilt(ctx)
}

// Restore extends what a slot holds of a prompt from the store. The slot is reserved for
// the request and holds the prompt's first have tokens. lock is the runner's: held on
// entry and on return, released while pages are looked up and read. The last token of the
// prompt is always left to compute.
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
	result := Restored{Held: have}
	defer func() { hold(result.Held) }()
	lock = &publishing{Locker: lock, hold: hold, result: &result}
	limit := len(prompt) - 1 // the last token is computed, for its logits
	if t.stateful() && have > 0 && !t.opts.States.HasState(seq) {
		t.clear(seq, &result) // the rows that are left lead nowhere
	}
	t.recheck(ctx, lock, seq)
	err := t.restoreExact(ctx, lock, seq, limit, prompt, &result)
	if err == nil && t.opts.Runs != nil && !t.stateful() {
		err = t.reuse(ctx, lock, seq, limit, prompt, &result)
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

// publishing is the runner's lock during a restore. Whoever lets go of it tells the runner
// what the slot holds by then.
type publishing struct {
	sync.Locker
	hold   func(tokens int)
	result *Restored
}

func (l *publishing) Unlock() {
	l.hold(l.result.Held)
	l.Locker.Unlock()
}

// restoreExact restores what follows from the prompt's beginning. Where it could not end as
// planned the slot is empty, unless it can be given up at any position.
func (t *TieredCausal) restoreExact(ctx context.Context, lock sync.Locker, seq, limit int, prompt []*input.Input, result *Restored) error {
	whole, err := t.restore(ctx, lock, seq, limit, prompt, result)
	if whole || t.partial() {
		return err
	}
	// A window or a state of another position is another one: what came in is no use.
	limit = result.Held
	t.clear(seq, result)
	if err != nil { // a damaged page: what is before it may serve
		if whole, _ = t.restore(ctx, lock, seq, limit, prompt, result); !whole {
			t.clear(seq, result)
		}
	}
	return err
}

// clear empties a slot.
func (t *TieredCausal) clear(seq int, result *Restored) {
	_ = t.Remove(seq, 0, math.MaxInt32) // freeing to the end of a sequence cannot fail
	*result = Restored{}
}

// restore makes one plan and carries it out as far as it can. It reports whether that was
// to its end: if not, the slot holds what result says in groups that keep everything.
func (t *TieredCausal) restore(ctx context.Context, lock sync.Locker, seq, limit int, prompt []*input.Input, result *Restored) (whole bool, err error) {
	p, ok := t.planRestore(ctx, lock, seq, result.Held, limit, prompt)
	if !ok {
		return true, nil
	}
	return t.carryOut(ctx, lock, &p, result)
}

// carryOut does what a plan says, as far as it can. It reports whether that was to its end.
func (t *TieredCausal) carryOut(ctx context.Context, lock sync.Locker, p *plan, result *Restored) (whole bool, err error) {
	base := p.wanted(p.base)
	err = t.takeCells(p, result.Held)
	result.Held = base // of what follows cells are reserved and none is written
	if p.state {
		result.Held = 0 // the state after base is being replaced
	}
	if err != nil {
		t.log.Debug("kv tier: no room to restore", "slot", p.seq, "error", err)
		return false, nil
	}

	lock.Unlock()
	held, err := t.fill(ctx, p)
	lock.Lock()
	if p.by != 0 && held > p.base {
		if turned := t.turn(ctx, lock, p, held); turned != nil {
			held, err = p.base, turned
		}
	}

	result.Held = t.publish(p, held)
	result.Tokens += max(0, result.Held-base)
	if p.by != 0 {
		result.Shifted += result.Held - base
	}
	for i, ref := range p.refs {
		if int(ref.Start) < held {
			result.Bytes += p.bytes(&t.geometry, i)
			result.addTier(ref.Tier)
			t.learn(p, i)
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
// begins to wait for what may still use them. The runner's lock is held.
func (t *TieredCausal) takeCells(p *plan, have int) error {
	base := p.wanted(p.base)
	if base < have {
		if err := t.Remove(p.seq, int32(base), math.MaxInt32); err != nil {
			return fmt.Errorf("free rows that do not follow from the prompt: %w", err)
		}
	}
	p.cells = make([][]int32, len(t.groups))
	for g := range t.groups {
		begin, end := p.wanted(p.begin[g]), p.wanted(p.end)
		cells, err := t.groups[g].ReserveCells(p.seq, int32(begin), int32(end), p.preferred[g])
		if err != nil {
			t.free(p.seq, base)
			return err
		}
		p.cells[g] = cells
	}
	if p.state {
		if err := t.opts.States.BeginState(p.seq); err != nil {
			t.free(p.seq, base)
			return err
		}
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slot(p.seq)
	for g := range t.groups { // to make room for the end of the plan these became free
		s.from[g] = max(s.from[g], min(t.groups[g].oldest(p.wanted(p.end)), len(s.tokens)))
	}
	p.free = t.whenComputedLocked()
	return nil
}

// free gives back the cells of positions from begin on in all groups. It cannot fail.
func (t *TieredCausal) free(seq, begin int) {
	for g := range t.groups {
		_ = t.groups[g].Remove(seq, int32(begin), math.MaxInt32)
	}
}

// landBuilt waits until every flight that is built by now is done.
func (t *TieredCausal) landBuilt(ctx context.Context) error {
	t.mu.Lock()
	job := t.addIdleLocked(idleJob{after: t.lastBuilt(), run: func() error { return nil }})
	t.mu.Unlock()
	return t.await(ctx, job)
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
func (t *TieredCausal) publish(p *plan, held int) int {
	if held < p.end {
		t.free(p.seq, p.wanted(held))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slot(p.seq)
	t.noteDropped()
	if p.by != 0 {
		s.broken = s.broken || held > p.base
		return p.wanted(held)
	}
	s.truncate(p.base)
	if len(s.tokens) < p.base {
		s.broken = true
		return held
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
		t.publishCells(p, s, g, held)
	}
	s.trimKeys(t.opts.PageTokens)
	t.extendKeys(s)
	for _, ref := range slices.Concat(p.passed, p.refs) {
		if full := !ref.Tail && int(ref.Start)+ref.Tokens <= held; full && int(ref.Start)/t.opts.PageTokens < len(s.pages) {
			s.pages[int(ref.Start)/t.opts.PageTokens] = pageStored
		}
	}
	if last := len(p.refs) - 1; held == p.end && last >= 0 && (p.refs[last].Tail || held < int(p.refs[last].Start)+p.refs[last].Tokens) {
		s.tail = saved{tokens: held} // is stored, perhaps in a page that goes on
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
		t.stats.ShiftedTokens += int64(r.Shifted)
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
