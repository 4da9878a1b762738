package kvcache

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/telemetry"
)

// sealLocked hands every full page of a slot that is not stored yet to the write queue. Rows
// from position leaving on are about to be removed or rotated: their pages are queued up to
// Options.QueuedBytes and given up beyond. Any other page that finds no room stays in the cache,
// and is tried again when the next batch is done. A group with a window may have dropped its
// rows by then: the page is stored without these rows, and serves restores that end far
// enough past the page. Where every group has dropped its rows the page is not stored; pages
// after it are of use once its tokens are computed again.
//
// Pages that continue a page given up are not stored: a lookup could not reach them.
func (t *TieredCausal) sealLocked(s *slot, leaving int) {
	s.extendKeys()
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
		if t.missingLocked(s, page, s.keys[page]) && !t.caches.hasNone(s, page*size) {
			switch _, ok := t.copyOutLocked(s, page, (page+1)*size, goes, false); {
			case !ok && goes:
				t.stats.DroppedPages += int64(min(len(s.keys), s.private/size) - page)
				t.why.givenLocked(s.keys[page], givenQueue)
				return
			case !ok && leaving == staying:
				return
			case !ok:
				continue // this page stays in the cache, later pages may be leaving
			}
			t.stats.SealedPages++
		}
		s.pages[page] = pageStored
	}
}

// staying is sealLocked's argument leaving when all rows stay.
const staying = math.MaxInt

// noteDroppedLocked marks, in all slots, pages that the queue has given up.
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

// healLocked queues pages and tails of finished slots that are not stored and found no room
// in the queue before; pages that were given up are left out. healLocked reports whether any
// page was queued. With inUse, unfinished slots are included, whose next batch would
// otherwise queue their pages, and tails that are not due yet.
func (t *TieredCausal) healLocked(inUse bool) bool {
	before := t.stats.SealedPages + t.stats.SealedTails
	for seq, s := range t.slots {
		done := s.request == requestEnded && !t.flights.flyingLocked(seq)
		if !done && !inUse || t.queue.suspended() {
			continue
		}
		t.noteLostLocked(seq, s)
		t.sealLocked(s, staying)
		if done && (!t.caches.stateful() || len(t.flights.built) == 0) && (inUse || t.tailDueLocked(s)) {
			t.sealTailLocked(s, false)
		}
	}
	return t.stats.SealedPages+t.stats.SealedTails > before
}

// healIdle calls healLocked for the write queue, when the queue is empty or the store works
// again. While a batch is built healIdle does nothing: BatchDone calls healLocked
// afterwards.
func (t *TieredCausal) healIdle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.flights.built) == 0 {
		t.healLocked(false)
	}
}

// anew queues missing pages and tails of all slots, with those that were given up: these are
// stored only where the store has room. The tail of a slot whose request has not ended is the end
// of the computed text, or of the turn before, whose tail may still have waited; the runner may end
// before the request does.
func (t *TieredCausal) anew() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noteDroppedLocked()
	for _, s := range t.slots {
		s.anew()
	}
	t.healLocked(true)
	for _, s := range t.slots {
		if (s.request == requestPrompt || s.request == requestAnswer) && t.caches.divisible() { // other models saved a tail when the prompt ended
			t.sealTailLocked(s, true)
		}
	}
}

// wrote handles the result of an attempt to write a queued page.
func (t *TieredCausal) wrote(job *writeJob, err error) {
	if err != nil {
		if t.opts.Runs != nil && !t.store.Has(job.key) {
			t.opts.Runs.Remove(job.key)
		}
		if reason := whyGiven(err); reason != "" {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.why.givenLocked(job.key, reason)
		}
		return
	}
	t.countSealed(job.page)
	if job.tries > 0 {
		t.learn(job.key, job.page)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.why.givenLocked(job.key, "")
	if t.thin[job.key] && t.caches.hasAll(job.page.Layout) {
		delete(t.thin, job.key)
	}
}

// missingLocked reports whether a page is neither queued nor known to be stored, or is stored
// without rows that the slot has. missingLocked does not ask the store, which may hang: Put
// writes no page that is stored already.
func (t *TieredCausal) missingLocked(s *slot, page int, key pagefile.Key) bool {
	switch {
	case t.queue.has(key):
		return false
	case t.thin[key] && s.hasAll(page*t.opts.PageTokens):
		return true
	}
	return !s.found[key]
}

// noteLostLocked notes the rows that a slot's groups no longer have, or may lose meanwhile.
// Building a batch frees rows too far before the batch's first position of the sequence, or
// before the sequence's end where the batch has no part of the sequence.
func (t *TieredCausal) noteLostLocked(seq int, s *slot) {
	t.caches.mayLose(s, t.flights.lastBeginLocked(seq, len(s.tokens)))
}

// tailDueLocked reports whether the tail of a slot whose request has ended is stored now. If not,
// healIdle is called when it is.
func (t *TieredCausal) tailDueLocked(s *slot) bool {
	if !t.caches.divisible() || !t.queue.now().Before(s.tailDue) {
		return true
	}
	if len(s.tokens) != s.tail.tokens {
		t.queue.wakeAtLatest(s.tailDue)
	}
	return false
}

// tailSlack is the number of tokens that are not worth writing a tail. The runner computes the last
// token of an answer and forgets it.
const tailSlack = 8

// tailStaysLocked reports whether a slot that is about to keep only positions before begin keeps
// all that is worth a tail: the next turn makes the tail longer.
func (t *TieredCausal) tailStaysLocked(s *slot, begin int) bool {
	return t.opts.TailDelay > 0 && t.caches.divisible() && begin > 0 && begin >= len(s.tokens)-tailSlack
}

// sealTailLocked saves the incomplete last page of a slot. leaving says that its rows are
// about to be removed or rotated.
func (t *TieredCausal) sealTailLocked(s *slot, leaving bool) {
	if t.caches.stateful() {
		t.sealStateLocked(s) // rows without state are of no use
		return
	}
	t.noteDroppedLocked()
	s.extendKeys()
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

// copyOutLocked copies a page's rows before position end into staging and queues the page,
// with the state after these rows if state is set. copyOutLocked returns the page's key, and
// whether the page is queued.
func (t *TieredCausal) copyOutLocked(s *slot, page, end int, leaving, state bool) (key pagefile.Key, ok bool) {
	begin := page * t.opts.PageTokens
	if !t.caches.known() || t.caches.hasNone(s, begin) && !state {
		return key, false
	}
	layout, err := t.caches.layout(end-begin, func(g int) bool {
		if g == len(t.caches.groups) {
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
		if leaving && !t.queue.suspended() { // else the outage was told
			t.opts.Unstored.Lost(telemetry.ObstacleSlow, errors.New(givenQueue))
		}
		return key, false
	}
	rows := pageRows{layout: layout, payload: payload, cells: make([][]int32, len(t.caches.groups))}
	for g := range rows.cells {
		rows.cells[g] = slices.Clone(s.cells[g][begin:end])
	}
	later, err := t.gatherLocked(rows)
	if err != nil {
		t.copyFailedLocked(copyPageOut, err)
		return key, false
	}
	if later != nil {
		later.slot, later.end = s, end
	}

	out := &pagefile.Page{
		Parent:  s.parent(page),
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
	t.learn(key, out) // before the push: wrote may remove the page again
	t.queue.push(key, out, s.given, later)
	return key, true
}

// copyPageOut names the copy of a page in the log.
const copyPageOut = "copy a page out of the cache"

// gatherLocked copies a page's rows and state, except rows that are copied beside batches.
// gatherLocked returns how to copy these, or nil if there are none.
func (t *TieredCausal) gatherLocked(rows pageRows) (later *copyOut, err error) {
	now, marker := false, Beside(nil)
	for _, s := range rows.layout.Sections() {
		switch g := groupOf(t.caches.groups, s); {
		case s.Kind == pagefile.KindCell:
		case g >= 0 && t.caches.groups[g].later():
			later, marker = &copyOut{rows: rows}, t.caches.groups[g].Rows.(Beside)
		default:
			now = true
		}
	}
	if now {
		t.device.awaitRows()
	}
	err = gather(t.caches.groups, t.caches.states, rows, func(g int) bool { return !t.caches.groups[g].beside })
	if err == nil {
		err = gatherSpans(t.caches.groups, []pageRows{rows}, func(g int) bool { return t.caches.groups[g].beside && !t.caches.groups[g].later() }, t.bounce)
	}
	if later != nil {
		later.mark = t.device.after(marker)
	}
	return later, err
}

// copyFailedLocked counts a page that could not be copied and is computed again when needed.
func (t *TieredCausal) copyFailedLocked(what string, err error) {
	t.stats.FailedCopies++
	t.tellCopyFailed(what, err)
}

func (t *TieredCausal) tellCopyFailed(what string, err error) {
	t.opts.Unstored.Lost(telemetry.ObstacleCopy, fmt.Errorf("%s: %w", what, err))
}
