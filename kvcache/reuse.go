package kvcache

import (
	"context"
	"errors"
	"slices"

	ollama "github.com/ollama/ollama/kvcache"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/kvcache/runs"
)

// reuse goes on where what follows from the prompt's beginning ends: with the part of a page
// that the prompt shares, which is exact, and with runs of text that were computed at another
// position. Those make the approximation that upstream makes when it shifts a slot: K is
// turned to where it is now, and has seen what was before it then. A run must begin where
// the slot ends.
func (r *restoring) reuse(ctx context.Context) error {
	text := r.prompt.withoutMedia(r.result.Held, r.limit)
	for ctx.Err() == nil && r.result.Held < text {
		found, complete, err := r.extend(ctx, r.sharedPage(text))
		if !found {
			found, complete, err = r.extend(ctx, r.movedRun(text))
		}
		if !found {
			return nil
		}
		if complete {
			continue
		}
		if errors.Is(err, ollama.ErrNotSupported) {
			r.log.Warn("kv tier: this model cannot shift computed text, only prompts that begin alike are reused", "reason", err)
			r.noRuns.Store(true)
			err = nil
		}
		if r.divisible() {
			return err
		}
		// what a window lost to the run that failed has to come back
		r.clear()
		return errors.Join(err, r.restoreExact(ctx))
	}
	return ctx.Err()
}

// withoutMedia is the last position up to end before which there are no images from begin
// on. They and what belongs into one batch with them stay where they are.
func (text *prompt) withoutMedia(begin, end int) int {
	for _, m := range text.media {
		if at := int(m.Offset); at >= begin {
			end = min(end, at)
		}
	}
	for _, s := range text.spans {
		if s.end > begin {
			end = min(end, s.begin)
		}
	}
	return end
}

// sharedPage goes on with a page that begins as the prompt does and ends in another way. Rows
// of a shared beginning are exact.
func (r *restoring) sharedPage(limit int) lookUp {
	at := r.result.Held
	start := at / r.opts.PageTokens * r.opts.PageTokens
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.slotLocked(r.seq)
	exact := !s.broken && len(s.tokens) == at && len(pagefile.MediaWithin(s.media, start, at-start)) == 0
	if !exact || !r.readyLocked() {
		return nil
	}
	r.extendKeysLocked(s)
	page, n := r.opts.Runs.Begins(r.parentLocked(s, start/r.opts.PageTokens), r.prompt.tokens[start:limit])
	if start+n <= at {
		return nil
	}
	return func(ctx context.Context) (plan, bool) {
		refs := r.pagesOf(ctx, &page, page.Tokens)
		if len(refs) == 0 {
			return plan{}, false
		}
		p := plan{seq: r.seq, base: at}
		p.prompt.tokens = slices.Concat(r.prompt.tokens[:start], page.Tokens)
		p.take(refs[:1], start+n)
		return p, r.worth(ctx, &p, at+1)
	}
}

// movedRun goes on with the longest run of the prompt's tokens that is stored anywhere else.
func (r *restoring) movedRun(limit int) lookUp {
	r.mu.Lock()
	ready := r.readyLocked()
	r.mu.Unlock()
	if !ready || r.noRuns.Load() {
		return nil
	}
	at := r.result.Held
	wanted := r.prompt.tokens[at:limit]
	found := r.opts.Runs.Find(wanted, at)
	return func(ctx context.Context) (plan, bool) {
		for _, run := range found {
			if ctx.Err() != nil {
				break
			}
			stored := slices.Concat(run.Page.Tokens[:run.From], wanted)
			p := plan{seq: r.seq, base: run.Position(), by: at - run.Position()}
			p.prompt.tokens = append(make([]int32, run.Page.Start), stored...)
			p.take(r.pagesOf(ctx, &run.Page, stored), limit-p.by)
			if r.worth(ctx, &p, p.base+r.opts.PageTokens) {
				return p, true
			}
		}
		return plan{}, false
	}
}

// pagesOf looks up a page that the index knows and those that go on as tokens do, which begin
// with the page's. The index drops it when it is not stored any more.
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
func (r *restoring) turn(ctx context.Context, p *plan, held int) error {
	return r.whenIdle(ctx, func() error {
		for g := range r.groups {
			if n := held - p.begin[g]; n > 0 {
				if err := r.groups[g].ShiftRows(p.cells[g][:n], int32(p.by)); err != nil {
					return err
				}
			}
		}
		r.synchronize()
		return nil
	})
}

// learn makes a page known to the index of text that may move, where there is an index and no
// image in the page.
func (t *TieredCausal) learn(key pagefile.Key, page *pagefile.Page) {
	if t.opts.Runs != nil && len(page.Media) == 0 {
		t.opts.Runs.Add(runs.Page{Key: key, Parent: page.Parent, Start: int(page.Start), Tokens: page.Tokens})
	}
}
