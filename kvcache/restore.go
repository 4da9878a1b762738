package kvcache

import (
	"context"
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
	// Bytes is what was read for them.
	Bytes int64
	// Tiers names where from, in order of first use.
	Tiers []string
	// Took is the time from the lookup to the last row.
	Took time.Duration
}

// plan is what a restore is going to do: pages that cover positions [base, end).
type plan struct {
	tokens    []int32
	refs      []diskstore.Ref
	base, end int
	bytes     int64
	cells     []int32
	lastBuilt int
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
	p, ok := t.planRestore(ctx, lock, seq, have, prompt)
	if !ok {
		return result, ctx.Err()
	}
	if err := t.takeCells(&p, seq, have); err != nil {
		t.log.Debug("kv tier: no room to restore", "slot", seq, "error", err)
		result.Held = p.base
		return result, nil
	}

	lock.Unlock()
	held, err := t.fill(ctx, &p)
	lock.Lock()

	result.Held = t.publish(&p, seq, held)
	result.Tokens = max(0, result.Held-p.base)
	result.Took = time.Since(started)
	for _, ref := range p.refs {
		if int(ref.Start) < result.Held {
			result.Bytes += ref.Bytes
			result.addTier(ref.Tier)
		}
	}
	t.restored(&result)
	if ctx.Err() != nil {
		return result, ctx.Err()
	}
	if err != nil {
		t.log.Warn("kv tier: restore stopped early, the rest of the prompt is computed", "slot", seq, "restored", result.Tokens, "error", err)
	}
	return result, nil
}

func (r *Restored) addTier(tier string) {
	for _, have := range r.Tiers {
		if have == tier {
			return
		}
	}
	r.Tiers = append(r.Tiers, tier)
}

// planRestore looks the longest stored chain up and decides whether reading it pays.
func (t *TieredCausal) planRestore(ctx context.Context, lock sync.Locker, seq, have int, prompt []*input.Input) (plan, bool) {
	p := plan{tokens: textPrefix(prompt)}
	limit := min(len(p.tokens), len(prompt)-1) // the last token is computed, for its logits
	t.mu.Lock()
	p.base = t.restoreBase(seq, have, p.tokens)
	parent, start := t.knownPrefix(seq, p.base)
	ready := t.ready()
	t.mu.Unlock()
	if !ready || limit <= p.base {
		return p, false
	}

	lock.Unlock()
	defer lock.Lock()
	if t.queue.extends(p.tokens, p.base) {
		wait, cancel := context.WithTimeout(ctx, pendingWait)
		_ = t.queue.wait(wait) // what is not written by then is computed again
		cancel()
	}

	for _, ref := range t.opts.Store.ChainFrom(ctx, parent, start, p.tokens[start:], nil) {
		p.end = min(int(ref.Start)+ref.Tokens, limit)
		if p.end > max(p.base, int(ref.Start)) {
			p.refs = append(p.refs, ref)
			p.bytes += ref.Bytes
		}
	}
	// rows that the slot holds are read again only where they are not exact
	if p.end < have || p.end <= p.base || ctx.Err() != nil {
		return p, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.opts.AlwaysRestore && !t.gate.pays(p.end-p.base, p.bytes) {
		t.stats.SkippedRestores++
		return p, false
	}
	return p, true
}

// textPrefix is the tokens of a prompt up to its first image or sound.
func textPrefix(prompt []*input.Input) []int32 {
	tokens := make([]int32, 0, len(prompt))
	for _, in := range prompt {
		if in.MultimodalHash != 0 || len(in.Multimodal) != 0 {
			break
		}
		tokens = append(tokens, in.Token)
	}
	return tokens
}

// restoreBase is the position restored rows start from. Rows of a broken slot do not
// follow from the prompt: exact ones replace them.
func (t *TieredCausal) restoreBase(seq, have int, tokens []int32) int {
	s := t.slot(seq)
	exact := 0
	for exact < len(s.tokens) && exact < len(tokens) && s.tokens[exact] == tokens[exact] {
		exact++
	}
	if s.broken || exact < min(len(s.tokens), have) {
		return min(exact, have)
	}
	return have
}

// knownPrefix is where the lookup starts: after the pages whose keys the slot knows.
func (t *TieredCausal) knownPrefix(seq, base int) (parent diskstore.Key, start int) {
	s := t.slot(seq)
	t.extendKeys(s)
	pages := min(base/t.opts.PageTokens, len(s.keys))
	return t.parent(s, pages), pages * t.opts.PageTokens
}

// takeCells reserves the cells of a plan, after freeing those of rows it replaces, and
// notes which flights may still write into them. The runner's lock is held.
func (t *TieredCausal) takeCells(p *plan, seq, have int) error {
	if p.base < have {
		if err := t.Remove(seq, int32(p.base), math.MaxInt32); err != nil {
			return fmt.Errorf("free rows that do not follow from the prompt: %w", err)
		}
	}
	cells, err := t.Rows.ReserveCells(seq, int32(p.base), int32(p.end))
	if err != nil {
		return err
	}
	p.cells = cells

	t.mu.Lock()
	defer t.mu.Unlock()
	p.lastBuilt = t.lastBuilt()
	return nil
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
		// freeing to the end of a sequence cannot fail
		_ = t.Rows.Remove(seq, int32(held), math.MaxInt32)
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
	s.tokens = append(s.tokens, p.tokens[p.base:held]...)
	s.cells = append(s.cells, p.cells[:held-p.base]...)
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
func (t *TieredCausal) poison(cells []int32) {
	for _, s := range t.geometry.sections {
		rows := make([]byte, int(s.RowBytes)*len(cells))
		for i := range rows {
			rows[i] = 0xff
		}
		if err := t.Rows.WriteRows(int(s.Layer), s.Kind == diskstore.KindV, cells, rows); err != nil {
			t.log.Error("kv tier: poison cells", "error", err)
		}
	}
}
