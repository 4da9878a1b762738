package kvcache

import (
	"context"

	"github.com/kvtier/kvtier/diskstore"
)

// healLocked queues pages and tails of finished slots that found no room in the queue before, except
// those that were given up, and reports whether any was queued. With inUse, it includes unfinished
// slots, whose next batch would otherwise queue their pages, and tails that are not due yet.
func (t *TieredCausal) healLocked(inUse bool) bool {
	before := t.stats.SealedPages + t.stats.SealedTails
	for seq, s := range t.slots.of {
		done := s.request == requestEnded && !t.inFlight.flyingLocked(seq)
		if !done && !inUse || t.queue.suspended() {
			continue
		}
		t.noteLostLocked(seq, s)
		t.sealer.seal(s, staying)
		if done && (!t.caches.stateful() || len(t.inFlight.built) == 0) && (inUse || t.sealer.tailDue(s)) {
			t.sealer.tail(s, false)
		}
	}
	return t.stats.SealedPages+t.stats.SealedTails > before
}

// healIdle calls healLocked for the write queue, when the queue is empty or the store works again.
// While a batch is built healIdle does nothing: BatchDone calls healLocked afterwards.
func (t *TieredCausal) healIdle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.inFlight.built) == 0 {
		t.healLocked(false)
	}
}

// anew queues missing pages and tails of all slots, with those that were given up: these are stored only
// where the store has room. It includes the tails of slots whose requests have not ended, because the
// runner may end before: a tail of the text so far, or of the turn before, which may still have waited.
func (t *TieredCausal) anew() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sealer.noteDropped()
	for _, s := range t.slots.of {
		s.anew()
	}
	t.healLocked(true)
	for _, s := range t.slots.of {
		if (s.request == requestPrompt || s.request == requestAnswer) && t.caches.divisible() { // other models saved a tail when the prompt ended
			t.sealer.tail(s, true)
		}
	}
}

// wrote handles the result of an attempt to write a queued page.
func (t *TieredCausal) wrote(job *writeJob, err error) {
	if err != nil {
		if t.opts.Runs != nil {
			if has, _ := t.store.Has(context.Background(), job.key); !has {
				t.opts.Runs.Remove(job.key)
			}
		}
		if reason := whyGiven(err); reason != "" {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.why.givenLocked(job.key, reason)
		}
		return
	}
	countSealed(t.opts.Meter, job.page, t.opts.PageTokens)
	if job.tries > 0 {
		t.opts.Runs.Learn(job.key, job.page)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.why.givenLocked(job.key, "")
	if t.caches.hasAll(job.page.Layout) {
		t.partial.remove(job.key)
	}
}

// noteRead notes the result of reading a page. A page that cannot be read is stored again by a
// slot that computes its rows, or that has them.
func (t *TieredCausal) noteRead(ref diskstore.Ref, err error) {
	if !unreadable(err) {
		return
	}
	t.queue.lost(ref.Key)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.slots.of {
		s.lost(ref.Key)
	}
}

// noteLostLocked notes the rows that a slot's groups no longer have, or may lose meanwhile.
// Building a batch frees rows too far before the batch's first position of the sequence, or
// before the sequence's end where the batch has no part of the sequence.
func (t *TieredCausal) noteLostLocked(seq int, s *slot) {
	t.caches.mayLose(s, t.inFlight.lastBeginLocked(seq, len(s.tokens)))
}
