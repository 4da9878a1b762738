package kvcache

import (
	"math"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/kvcache/runs"
)

// seal hands every full page of a slot that is not stored yet to the write queue. leaving
// says that the rows are about to be removed or rotated: then they are copied even when
// the queue is full. Otherwise a page that finds no room stays in the cache, and is tried
// again when the next batch is done. A group with a window may have forgotten its rows by
// then: the page is stored without them, and serves those that reach past it. Where all
// groups have, there is no page to store, and those after it serve once its tokens are
// computed again. A page that could not be written is queued again.
func (t *TieredCausal) seal(s *slot, leaving bool) {
	t.extendKeys(s)
	t.recount(s)
	size := t.opts.PageTokens
	for s.sealed < len(s.keys) && (s.sealed+1)*size <= s.private {
		page := s.sealed
		key := s.keys[page]
		if t.missing(s, page, key) && !t.gone(s, page*size) {
			if !t.copyOut(s, page*size, (page+1)*size, leaving, false) {
				return
			}
			t.stats.SealedPages++
		}
		s.sealed++
	}
}

// recount takes back what was counted as stored and has not been written. While the store is
// left alone after a failure nothing is, and nothing is asked.
func (t *TieredCausal) recount(s *slot) {
	if t.queue.suspended() {
		return
	}
	first, losses, told := t.queue.firstLost(s.keys[:s.sealed], s.losses)
	if losses == s.losses {
		return
	}
	if s.known = max(s.known, s.sealed); !told {
		s.known = 0
	}
	s.losses, s.sealed, s.tailTokens, s.stateSaved = losses, first, 0, 0
}

// heal queues what finished slots hold and the store has not: pages and tails whose writing
// failed, or for which there was no room in the queue. It reports whether there were any. With
// inUse slots are looked at as well whose next batch would do the same. t.mu is held.
func (t *TieredCausal) heal(inUse bool) bool {
	before := t.stats.SealedPages + t.stats.SealedTails
	for seq, s := range t.slots {
		done := s.ending && !t.flying(seq)
		if !done && !inUse || t.queue.suspended() {
			continue
		}
		t.forget(seq, s)
		t.seal(s, false)
		if done && (!t.stateful() || len(t.flights) == 0) {
			t.sealTail(s)
		}
	}
	return t.stats.SealedPages+t.stats.SealedTails > before
}

// healIdle is heal for the write queue, when a store that failed may be tried again: with one
// page first. While a batch is built nothing is copied here: heal is called when it is done.
func (t *TieredCausal) healIdle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.flights) == 0 && !(t.queue.doubts() && t.healOne()) {
		t.heal(false)
	}
}

// healOne queues one of the pages that heal would, which was tried least often. It reports
// whether there was any. No batch is built.
func (t *TieredCausal) healOne() bool {
	var from *slot
	page, least := 0, math.MaxInt
	for seq, s := range t.slots {
		if !s.ending {
			continue
		}
		t.forget(seq, s)
		t.extendKeys(s)
		t.recount(s)
		for i := s.sealed; i < len(s.keys) && (i+1)*t.opts.PageTokens <= s.private; i++ {
			if tries, _ := t.queue.tries(s.keys[i]); tries < least && t.missing(s, i, s.keys[i]) {
				from, page, least = s, i, tries
			}
		}
	}
	if from == nil {
		return false
	}
	t.queue.leave()
	if t.copyOut(from, page*t.opts.PageTokens, (page+1)*t.opts.PageTokens, false, false) {
		t.stats.SealedPages++
	}
	return true
}

// wrote learns what became of a queued page.
func (t *TieredCausal) wrote(job *writeJob, err error) {
	if err != nil {
		if t.opts.Runs != nil && !t.opts.Store.Has(job.key) {
			t.opts.Runs.Remove(job.key)
		}
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.thin[job.key] && t.geometry.whole(job.page.Layout) {
		delete(t.thin, job.key)
	}
}

// missing reports whether a page is not stored, or known to be stored without rows that the
// slot has.
func (t *TieredCausal) missing(s *slot, page int, key diskstore.Key) bool {
	switch {
	case t.queue.has(key):
		return false
	case t.thin[key] && t.complete(s, page*t.opts.PageTokens):
		return true
	}
	if page < s.known {
		if _, lost := t.queue.tries(key); !lost {
			return false
		}
	}
	return !t.opts.Store.Has(key)
}

// gone reports whether no group has the rows from a position on any more.
func (t *TieredCausal) gone(s *slot, begin int) bool {
	return t.geometry.sections != nil && !t.geometry.any(func(g int) bool { return g < len(t.groups) && begin >= s.from[g] })
}

// complete reports whether every group still has the rows from a position on.
func (t *TieredCausal) complete(s *slot, begin int) bool {
	for _, from := range s.from {
		if begin < from {
			return false
		}
	}
	return true
}

// forget notes which rows a slot's groups no longer have, or may lose while this runs: a
// batch that is built has let go of what is too far before its first position, and of what
// is too far before the last one of a sequence that it does not continue.
func (t *TieredCausal) forget(seq int, s *slot) {
	for g := range t.groups {
		end := len(s.tokens)
		oldest := t.groups[g].oldest(end)
		for _, f := range t.flights {
			at := end
			for i := range f.parts {
				if p := &f.parts[i]; p.seq == seq && len(p.inputs) > 0 {
					at = min(at, int(p.begin))
					end = max(end, int(p.end()))
				}
			}
			oldest = max(oldest, t.groups[g].oldest(at))
		}
		if s.broken && t.groups[g].windowed() {
			oldest = len(s.tokens) // nobody knows how far the sequence goes on
		}
		s.from[g] = max(s.from[g], oldest)
	}
}

// sealTail saves the incomplete last page of a slot.
func (t *TieredCausal) sealTail(s *slot) {
	if t.stateful() {
		t.sealState(s) // rows alone are no use there
		return
	}
	t.recount(s)
	n := len(s.tokens)
	full := n / t.opts.PageTokens * t.opts.PageTokens
	if n == full || n > s.private || n == s.tailTokens {
		return
	}
	t.extendKeys(s)
	if t.copyOut(s, full, n, true, false) {
		s.tailTokens = n
		t.stats.SealedTails++
	}
}

// extendKeys computes the keys of pages that became whole.
func (t *TieredCausal) extendKeys(s *slot) {
	size := t.opts.PageTokens
	for page := len(s.keys); (page+1)*size <= len(s.tokens); page++ {
		s.keys = append(s.keys, diskstore.ChainKey(t.parent(s, page), s.tokens[page*size:(page+1)*size], mediaWithin(s.media, page*size, size)))
	}
}

// parent is the key of the page before, or the fingerprint for the first.
func (t *TieredCausal) parent(s *slot, page int) diskstore.Key {
	if page == 0 {
		return t.opts.Fingerprint
	}
	return s.keys[page-1]
}

// copyOut copies the rows of positions [begin, end), which lie in one page, into staging
// and queues them, with the state after them if that is wanted. It reports whether they are
// on their way.
func (t *TieredCausal) copyOut(s *slot, begin, end int, leaving, state bool) bool {
	if t.geometry.sections == nil || t.gone(s, begin) && !state {
		return false
	}
	layout, err := t.geometry.layout(end-begin, func(g int) bool {
		if g == len(t.groups) {
			return state
		}
		return begin >= s.from[g]
	})
	if err != nil {
		t.copyFailed("lay out a page", err)
		return false
	}
	payload := t.queue.stage(layout.Size(), leaving)
	if payload == nil {
		return false
	}
	t.synchronize()
	cells := make([][]int32, len(t.groups))
	for g := range cells {
		cells[g] = s.cells[g][begin:end]
	}
	if err := gather(t.groups, t.opts.States, layout, cells, payload); err != nil {
		t.copyFailed("copy a page out of the cache", err)
		return false
	}

	parent := t.parent(s, begin/t.opts.PageTokens)
	page := &diskstore.Page{
		Parent:  parent,
		Start:   uint32(begin),
		Tokens:  append([]int32(nil), s.tokens[begin:end]...),
		Media:   mediaWithin(s.media, begin, end-begin),
		Layout:  layout,
		Payload: payload,
	}
	key := diskstore.ChainKey(parent, page.Tokens, page.Media)
	t.opts.note(runs.Page{Key: key, Parent: parent, Start: begin, Tokens: page.Tokens}, page.Media) // before wrote may take it back
	t.queue.push(key, page)
	return true
}

// copyFailed reports the first failure of its kind; what could not be copied is computed
// again when it is needed.
func (t *TieredCausal) copyFailed(what string, err error) {
	if t.stats.FailedCopies == 0 {
		t.log.Warn("kv tier: could not "+what+"; it will be computed again when needed", "error", err)
	}
	t.stats.FailedCopies++
}
