package kvcache

import (
	"math"
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// sealLocked hands every full page of a slot that is not stored yet to the write queue. Rows
// from the position leaving on are about to be removed or rotated: they are copied even when
// the queue is full, up to its bound, and given up beyond. Another page that finds no room
// stays in the cache, and is tried again when the next batch is done. A group with a window
// may have forgotten its rows by then: the page is stored without them, and serves those that
// end past it. Where all groups have, there is no page to store, and those after it serve
// once its tokens are computed again.
//
// What continues a page that was given up is not stored: nobody could find it.
func (t *TieredCausal) sealLocked(s *slot, leaving int) {
	t.extendKeysLocked(s)
	t.noteDroppedLocked()
	size := t.opts.PageTokens
	for page := s.stored(); page < len(s.keys) && (page+1)*size <= s.private; page++ {
		switch {
		case s.pages[page] == pageStored:
			continue
		case s.pages[page] == pageGiven:
			return
		}
		goes := (page+1)*size > leaving
		if t.missingLocked(s, page, s.keys[page]) && !t.hasNoneLocked(s, page*size) {
			switch _, ok := t.copyOutLocked(s, page, (page+1)*size, goes, false); {
			case !ok && goes:
				t.stats.DroppedPages += int64(min(len(s.keys), s.private/size) - page)
				return
			case !ok && leaving == staying:
				return
			case !ok:
				continue // it stays, and others may not
			}
			t.stats.SealedPages++
		}
		s.pages[page] = pageStored
	}
}

// staying is the position from which rows leave that all stay.
const staying = math.MaxInt

// noteDroppedLocked learns which pages the queue has given up.
func (t *TieredCausal) noteDroppedLocked() {
	dropped := t.queue.takeDropped()
	if len(dropped) == 0 {
		return
	}
	t.stats.DroppedPages += int64(len(dropped))
	gone := make(map[pagefile.Key]bool)
	for _, key := range dropped {
		gone[key] = true
	}
	for _, s := range t.slots {
		s.dropped(gone)
	}
}

// healLocked queues what finished slots hold and the store has not, but for what was given up:
// pages and tails for which there was no room in the queue. It reports whether there were any.
// With inUse slots are looked at as well whose next batch would do the same.
func (t *TieredCausal) healLocked(inUse bool) bool {
	before := t.stats.SealedPages + t.stats.SealedTails
	for seq, s := range t.slots {
		done := s.request == requestEnded && !t.flyingLocked(seq)
		if !done && !inUse || t.queue.suspended() {
			continue
		}
		t.noteLostLocked(seq, s)
		t.sealLocked(s, staying)
		if done && (!t.stateful() || len(t.flights) == 0) {
			t.sealTailLocked(s, false)
		}
	}
	return t.stats.SealedPages+t.stats.SealedTails > before
}

// healIdle is heal for the write queue, when it is empty or the store works again. While a
// batch is built nothing is copied here: heal is called when it is done.
func (t *TieredCausal) healIdle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.flights) == 0 {
		t.healLocked(false)
	}
}

// anew is healed for what was given up as well, which is stored where there is room.
func (t *TieredCausal) anew() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noteDroppedLocked()
	for _, s := range t.slots {
		s.anew()
	}
	t.healLocked(true)
}

// wrote learns what became of a try to write a queued page.
func (t *TieredCausal) wrote(job *writeJob, err error) {
	if err != nil {
		if t.opts.Runs != nil && !t.opts.Store.Has(job.key) {
			t.opts.Runs.Remove(job.key)
		}
		return
	}
	if job.tries > 0 {
		t.learn(job.key, job.page)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.thin[job.key] && t.geometry.hasAll(job.page.Layout) {
		delete(t.thin, job.key)
	}
}

// missingLocked reports whether a page is not stored, or known to be stored without rows that
// the slot has.
func (t *TieredCausal) missingLocked(s *slot, page int, key pagefile.Key) bool {
	switch {
	case t.queue.has(key):
		return false
	case t.thin[key] && s.hasAll(page*t.opts.PageTokens):
		return true
	}
	return !t.opts.Store.Has(key)
}

// hasNoneLocked reports whether no group has the rows from a position on any more.
func (t *TieredCausal) hasNoneLocked(s *slot, begin int) bool {
	return t.geometry.sections != nil && !t.geometry.any(func(g int) bool { return g < len(t.groups) && begin >= s.from[g] })
}

// noteLostLocked notes which rows a slot's groups no longer have, or may lose while this runs: a
// batch that is built has let go of what is too far before its first position, and of what
// is too far before the last one of a sequence that it does not continue.
func (t *TieredCausal) noteLostLocked(seq int, s *slot) {
	for g := range t.groups {
		end := len(s.tokens)
		oldest := t.groups[g].oldest(end)
		for _, f := range t.flights {
			at := end
			for i := range f.parts {
				if part := &f.parts[i]; part.seq == seq && len(part.inputs) > 0 {
					at = min(at, int(part.begin))
					end = max(end, int(part.end()))
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

// sealTailLocked saves the incomplete last page of a slot. leaving says that its rows are
// about to be removed or rotated.
func (t *TieredCausal) sealTailLocked(s *slot, leaving bool) {
	if t.stateful() {
		t.sealStateLocked(s) // rows alone are no use there
		return
	}
	t.noteDroppedLocked()
	t.extendKeysLocked(s)
	n := len(s.tokens)
	page := n / t.opts.PageTokens
	if n == page*t.opts.PageTokens || n > s.private || n == s.tail.tokens || !s.leads(page) {
		return
	}
	if key, ok := t.copyOutLocked(s, page, n, leaving, false); ok {
		s.tail = saved{tokens: n, key: key}
		t.stats.SealedTails++
	}
}

// extendKeysLocked computes the keys of pages that became full.
func (t *TieredCausal) extendKeysLocked(s *slot) {
	size := t.opts.PageTokens
	for page := len(s.keys); (page+1)*size <= len(s.tokens); page++ {
		s.keys = append(s.keys, pagefile.ChainKey(t.parentLocked(s, page), s.tokens[page*size:(page+1)*size], pagefile.MediaWithin(s.media, page*size, size)))
		s.pages = append(s.pages, pageNew)
	}
}

// parentLocked is the key of the page before, or the fingerprint for the first.
func (t *TieredCausal) parentLocked(s *slot, page int) pagefile.Key {
	if page == 0 {
		return t.opts.Fingerprint
	}
	return s.keys[page-1]
}

// copyOutLocked copies the rows of a page up to a position into staging and queues them, with
// the state after them if that is wanted. It returns their key, and whether they are on their
// way.
func (t *TieredCausal) copyOutLocked(s *slot, page, end int, leaving, state bool) (key pagefile.Key, ok bool) {
	begin := page * t.opts.PageTokens
	if t.geometry.sections == nil || t.hasNoneLocked(s, begin) && !state {
		return key, false
	}
	layout, err := t.geometry.layout(end-begin, func(g int) bool {
		if g == len(t.groups) {
			return state
		}
		return begin >= s.from[g]
	})
	if err != nil {
		t.copyFailedLocked("lay out a page", err)
		return key, false
	}
	payload := t.queue.stage(layout.Size(), leaving)
	if payload == nil {
		return key, false
	}
	t.synchronize()
	cells := make([][]int32, len(t.groups))
	for g := range cells {
		cells[g] = s.cells[g][begin:end]
	}
	if err := gather(t.groups, t.opts.States, layout, cells, payload); err != nil {
		t.copyFailedLocked("copy a page out of the cache", err)
		return key, false
	}

	out := &pagefile.Page{
		Parent:  t.parentLocked(s, page),
		Start:   uint32(begin),
		Tokens:  slices.Clone(s.tokens[begin:end]),
		Media:   pagefile.MediaWithin(s.media, begin, end-begin),
		Layout:  layout,
		Payload: payload,
	}
	if end-begin == t.opts.PageTokens && page < len(s.keys) {
		key = s.keys[page]
	} else {
		key = pagefile.ChainKey(out.Parent, out.Tokens, out.Media)
	}
	t.learn(key, out) // before wrote may take it back
	t.queue.push(key, out, s.given)
	return key, true
}

// copyFailedLocked reports the first failure of its kind; what could not be copied is computed
// again when it is needed.
func (t *TieredCausal) copyFailedLocked(what string, err error) {
	if t.stats.FailedCopies == 0 {
		t.log.Warn("kv tier: could not "+what+"; it will be computed again when needed", "error", err)
	}
	t.stats.FailedCopies++
}
