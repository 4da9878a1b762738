package kvcache

import (
	"context"
	"errors"
	"slices"
	"time"

	ollama "github.com/ollama/ollama/kvcache"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/kvcache/runs"
)

// reuse goes on after the pages that follow from the prompt's beginning, with runs of text that were
// computed at another position and begin where the slot ends. As after upstream's shift of a slot, K is
// rotated to its new position, and still depends on the text before its old position.
func (r *restoring) reuse(ctx context.Context) error {
	text := r.prompt.withoutMedia(r.result.Held, r.limit)
	if r.result.Held < text {
		r.awaitRuns(ctx)
	}
	for ctx.Err() == nil && r.result.Held < text {
		found, complete, err := r.extend(ctx, r.movedRun(text))
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
		if r.caches.divisible() {
			return err
		}
		// restore the rows that windows lost to the failed run
		r.clear()
		return errors.Join(err, r.restoreExact(ctx))
	}
	return ctx.Err()
}

// awaitRuns waits until the index has the pages of earlier processes. The first request after
// a model was loaded would find none of them otherwise.
func (r *restoring) awaitRuns(ctx context.Context) {
	select {
	case <-r.filled:
		return
	default:
	}
	if r.filled == nil || !time.Now().Before(r.runsBy) {
		return
	}
	r.unlocked(func() {
		ctx, cancel := context.WithDeadline(ctx, r.runsBy)
		defer cancel()
		select {
		case <-r.filled:
		case <-ctx.Done():
		}
	})
}

// withoutMedia is the largest position up to end such that [begin, position) has no media
// and no input of a span: both are never moved.
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

// movedRun goes on with the longest run of the prompt's tokens that is stored at another position.
func (r *restoring) movedRun(limit int) lookUp {
	r.mu.Lock()
	ready := r.sealer.ready()
	r.mu.Unlock()
	if !ready || r.noRuns.Load() {
		return nil
	}
	at := r.result.Held
	wanted := r.prompt.tokens[at:limit]
	found := r.runs.Find(wanted, at)
	return func(ctx context.Context) (plan, bool) {
		for _, run := range found {
			if ctx.Err() != nil {
				break
			}
			stored := slices.Concat(run.Page.Tokens[:run.From], wanted)
			p := plan{seq: r.seq, base: run.Position(), by: at - run.Position()}
			p.prompt.tokens = append(make([]int32, run.Page.Start), stored...)
			p.take(r.find.pagesOf(ctx, &run.Page, stored), limit-p.by)
			if r.worth(ctx, &p, p.base+r.slots.size) {
				return p, true
			}
		}
		return plan{}, false
	}
}

// pagesOf looks up a page of the index and the pages that continue it, as far as tokens, which begin
// with the page's own, agree. A page that is not stored any more is removed from the index.
func (f *finder) pagesOf(ctx context.Context, page *runs.Page, tokens []int32) []diskstore.Ref {
	wait, cancel := context.WithTimeout(ctx, f.store.patience.queue)
	_ = f.queue.waitFor(wait, func(j *writeJob) bool { return j.key == page.Key })
	cancel()
	waiting := f.queue.has(page.Key) // asked before the store: a page that is written meanwhile is in either
	found, err := f.store.Find(ctx, diskstore.Prompt{Parent: page.Parent, Start: page.Start, Tokens: tokens})
	refs := found.Exact
	if len(refs) == 0 || refs[0].Key != page.Key {
		if err == nil && !waiting {
			f.index.Remove(page.Key)
		}
		return nil
	}
	return refs
}
