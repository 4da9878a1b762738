package kvcache

import (
	"context"
	"errors"
	"slices"
	"sync"

	ollama "github.com/ollama/ollama/kvcache"
	"github.com/ollama/ollama/model/input"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/kvcache/runs"
)

// reuse goes on where what follows from the prompt's beginning ends: with the part of a page
// that the prompt shares, which is exact, and with runs of text that were computed at another
// position. Those make the approximation that upstream makes when it shifts a slot: K is
// turned to where it is now, and has seen what was before it then. A run must begin where
// the slot ends. The runner's lock is held, and released as by Restore.
func (t *TieredCausal) reuse(ctx context.Context, lock sync.Locker, seq, limit int, inputs []*input.Input, result *Restored) error {
	full, _ := t.opts.Media.read(inputs)
	text := full.withoutMedia(result.Held, min(limit, len(full.tokens)))
	for ctx.Err() == nil && result.Held < text {
		p, ok := t.planSharedPage(ctx, lock, seq, result.Held, text, &full)
		if !ok {
			p, ok = t.planRun(ctx, lock, seq, result.Held, text, &full)
		}
		if !ok {
			return nil
		}
		whole, err := t.carryOut(ctx, lock, &p, result)
		if whole {
			continue
		}
		if errors.Is(err, ollama.ErrNotSupported) {
			t.log.Warn("kv tier: this model cannot shift what it has computed, only prompts that begin alike are reused", "reason", err)
			t.noRuns.Store(true)
			err = nil
		}
		if t.partial() {
			return err
		}
		// what a window lost to the run that failed has to come back
		t.clear(seq, result)
		return errors.Join(err, t.restoreExact(ctx, lock, seq, limit, inputs, result))
	}
	return ctx.Err()
}

// withoutMedia is the last position up to end before which there are no images from begin
// on. They and what belongs into one batch with them stay where they are.
func (p *prompt) withoutMedia(begin, end int) int {
	for _, m := range p.media {
		if at := int(m.Offset); at >= begin {
			end = min(end, at)
		}
	}
	for _, s := range p.spans {
		if s.end > begin {
			end = min(end, s.begin)
		}
	}
	return end
}

// planSharedPage plans to go on with a page that begins as the prompt does and ends in
// another way. Rows of a shared beginning are exact.
func (t *TieredCausal) planSharedPage(ctx context.Context, lock sync.Locker, seq, at, limit int, full *prompt) (plan, bool) {
	start := at / t.opts.PageTokens * t.opts.PageTokens
	t.mu.Lock()
	s := t.slot(seq)
	exact := !s.broken && len(s.tokens) == at && len(mediaWithin(s.media, start, at-start)) == 0
	ready := t.ready()
	parent := t.opts.Fingerprint
	if exact {
		t.extendKeys(s)
		parent = t.parent(s, start/t.opts.PageTokens)
	}
	t.mu.Unlock()
	if !ready || !exact {
		return plan{}, false
	}
	page, n := t.opts.Runs.Begins(parent, full.tokens[start:limit])
	if start+n <= at {
		return plan{}, false
	}

	lock.Unlock()
	defer lock.Lock()
	refs := t.pagesOf(ctx, &page, page.Tokens)
	if len(refs) == 0 {
		return plan{}, false
	}
	p := plan{seq: seq, refs: refs[:1], base: at, end: start + n}
	p.prompt = prompt{tokens: slices.Concat(full.tokens[:start], page.Tokens)}
	t.reach(ctx, &p)
	return p, p.end > at && ctx.Err() == nil && t.decide(ctx, &p) && p.end > at
}

// planRun plans to go on with the longest run of the prompt's tokens that is stored anywhere
// else.
func (t *TieredCausal) planRun(ctx context.Context, lock sync.Locker, seq, at, limit int, full *prompt) (plan, bool) {
	t.mu.Lock()
	ready := t.ready()
	t.mu.Unlock()
	if !ready || t.noRuns.Load() {
		return plan{}, false
	}
	wanted := full.tokens[at:limit]
	found := t.opts.Runs.Find(wanted, at)

	lock.Unlock()
	defer lock.Lock()
	for _, run := range found {
		if ctx.Err() != nil {
			break
		}
		stored := slices.Concat(run.Page.Tokens[:run.From], wanted)
		p := plan{seq: seq, base: run.Position(), by: at - run.Position()}
		p.prompt.tokens = append(make([]int32, run.Page.Start), stored...)
		for _, ref := range t.pagesOf(ctx, &run.Page, stored) {
			if end := min(int(ref.Start)+ref.Tokens, limit-p.by); end > p.base {
				p.refs, p.end = append(p.refs, ref), end
			}
		}
		t.reach(ctx, &p)
		long := func() bool { return p.end-p.base >= t.opts.PageTokens }
		if long() && ctx.Err() == nil && t.decide(ctx, &p) && long() {
			return p, true
		}
	}
	return plan{}, false
}

// pagesOf looks up a page that the index knows and those that go on as tokens do, which begin
// with the page's. The index forgets it when it is not stored any more.
func (t *TieredCausal) pagesOf(ctx context.Context, page *runs.Page, tokens []int32) []diskstore.Ref {
	wait, cancel := context.WithTimeout(ctx, pendingWait)
	_ = t.queue.waitFor(wait, func(j *writeJob) bool { return j.key == page.Key })
	cancel()
	refs := t.opts.Store.ChainFrom(ctx, page.Parent, page.Start, tokens, nil)
	if len(refs) == 0 || refs[0].Key != page.Key {
		if ctx.Err() == nil {
			t.opts.Runs.Remove(page.Key)
		}
		return nil
	}
	return refs
}

// turn turns K of the rows that a plan brought, up to a position of it, to where they are
// wanted.
func (t *TieredCausal) turn(ctx context.Context, lock sync.Locker, p *plan, held int) error {
	return t.whenIdle(ctx, lock, func() error {
		for g := range t.groups {
			if n := held - p.begin[g]; n > 0 {
				if err := t.groups[g].ShiftRows(p.cells[g][:n], int32(p.by)); err != nil {
					return err
				}
			}
		}
		t.synchronize()
		return nil
	})
}

// learn tells the index of a page that a plan has read.
func (t *TieredCausal) learn(p *plan, i int) {
	ref := p.refs[i]
	start, end := int(ref.Start), int(ref.Start)+ref.Tokens
	if !ref.Tail && end <= len(p.prompt.tokens) {
		t.opts.note(runs.Page{Key: ref.Key, Parent: ref.Parent, Start: start, Tokens: p.prompt.tokens[start:end]},
			mediaWithin(p.prompt.media, start, end-start))
	}
}

// note tells the index of a page, where there is an index and no image in the page.
func (o *Options) note(page runs.Page, media []diskstore.Media) {
	if o.Runs != nil && len(media) == 0 {
		page.Tokens = slices.Clone(page.Tokens)
		o.Runs.Add(page)
	}
}
