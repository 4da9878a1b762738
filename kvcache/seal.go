package kvcache

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/kvcache/runs"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/unstored"
)

// sealer copies rows of slots out of the caches for the write queue. TieredCausal.mu guards it.
type sealer struct {
	caches     *caches
	device     *progress
	queue      *writeQueue
	slots      *slots
	partial    *partialPages
	index      *runs.Index // of text that may move; may be nil
	why        *inquirer
	unstored   *unstored.Watch
	stats      *Stats
	log        *slog.Logger
	bounce     []byte // for rows of a device that are copied between batches
	tailDelay  time.Duration
	stateEvery int // tokens after which a state is stored
}

// ready reports whether the rows' shape is known. An unknown one is measured, under the runner's lock.
func (l *sealer) ready() bool {
	if l.caches.known() {
		return true
	}
	shape, err := measure(l.caches.groups, l.caches.states, l.caches.layers)
	if err != nil {
		l.log.Debug("kv tier: cache is not complete yet", "reason", err)
		return false
	}
	l.caches.geometry = shape
	l.queue.copiesFrom(l.caches.groups, func(err error) { l.tellCopyFailed(copyPageOut, err) })
	if slices.ContainsFunc(l.caches.groups, func(g group) bool { return g.beside && !g.later() }) {
		l.bounce = l.queue.takeBounce()
	}
	return true
}

// seal hands every full page of a slot that is not stored yet to the write queue. Rows from position
// leaving on are about to be removed or rotated: their pages are queued up to Options.QueuedBytes and
// given up beyond, with those that continue them, which no lookup could reach. Any other page that finds
// no room stays in the cache, and is tried again when the next batch is done. Rows that a window has
// dropped by then are left out: the page serves restores that end far enough past it. A page without
// rows in any group is not stored; pages after it are of use once its tokens are computed again.
func (l *sealer) seal(s *slot, leaving int) {
	s.extendKeys()
	l.noteDropped()
	size := s.size
	for page := s.stored(); page < len(s.keys) && (page+1)*size <= s.private; page++ {
		switch {
		case s.pages[page] == pageStored:
			continue
		case s.pages[page] == pageGiven:
			return
		}
		goes := (page+1)*size > leaving
		if l.missing(s, page, s.keys[page]) && !l.caches.hasNone(s, page*size) {
			switch _, ok := l.copyOut(s, page, (page+1)*size, goes, false); {
			case !ok && goes:
				l.stats.DroppedPages += int64(min(len(s.keys), s.private/size) - page)
				l.why.givenLocked(s.keys[page], givenQueue)
				return
			case !ok && leaving == staying:
				return
			case !ok:
				continue // this page stays in the cache, later pages may be leaving
			}
			l.stats.SealedPages++
		}
		s.pages[page] = pageStored
	}
}

// staying is seal's argument leaving when all rows stay.
const staying = math.MaxInt

// noteDropped marks, in all slots, pages that the queue has given up.
func (l *sealer) noteDropped() {
	dropped := l.queue.takeDropped()
	if len(dropped) == 0 {
		return
	}
	l.stats.DroppedPages += int64(len(dropped))
	gone := make(map[pagefile.Key]bool)
	for _, key := range dropped {
		gone[key] = true
	}
	for _, s := range l.slots.of {
		s.dropped(gone)
	}
}

// missing reports whether a page is neither queued nor known to be stored, or is stored
// without rows that the slot has. missing does not ask the store, which may hang: Put
// writes no page that is stored already.
func (l *sealer) missing(s *slot, page int, key pagefile.Key) bool {
	switch {
	case l.queue.has(key):
		return false
	case l.partial.has(key) && s.hasAll(page*s.size):
		return true
	}
	return !s.found[key]
}

// tailDue reports whether the tail of an ended request is stored now; if not, healIdle is called then.
func (l *sealer) tailDue(s *slot) bool {
	if !l.caches.divisible() || !l.queue.now().Before(s.tailDue) {
		return true
	}
	if len(s.tokens) != s.tail.tokens {
		l.queue.wakeAtLatest(s.tailDue)
	}
	return false
}

// tailSlack is the number of tokens that are not worth writing a tail. The runner computes the last
// token of an answer and forgets it.
const tailSlack = 8

// tailStays reports whether a slot that is about to keep only positions before begin keeps
// all that is worth a tail: the next turn makes the tail longer.
func (l *sealer) tailStays(s *slot, begin int) bool {
	return l.tailDelay > 0 && l.caches.divisible() && begin > 0 && begin >= len(s.tokens)-tailSlack
}

// tail saves a slot's incomplete last page. leaving: its rows are about to be removed or rotated.
func (l *sealer) tail(s *slot, leaving bool) {
	if l.caches.stateful() {
		l.state(s) // rows without state are of no use
		return
	}
	l.noteDropped()
	s.extendKeys()
	n := len(s.tokens)
	page := n / s.size
	if n == page*s.size || n > s.private || n == s.tail.tokens || !s.leads(page) {
		return
	}
	if key, ok := l.copyOut(s, page, n, leaving, false); ok {
		s.tail = saved{tokens: n, key: key}
		l.stats.SealedTails++
	}
}

// copyOut copies a page's rows before position end into staging and queues the page, with the state
// after these rows if state is set. copyOut returns the page's key, and whether the page is queued.
func (l *sealer) copyOut(s *slot, page, end int, leaving, state bool) (key pagefile.Key, ok bool) {
	begin := page * s.size
	if !l.caches.known() || l.caches.hasNone(s, begin) && !state {
		return key, false
	}
	layout, err := l.caches.layout(end-begin, func(g int) bool {
		if g == len(l.caches.groups) {
			return state
		}
		return begin >= s.from[g]
	})
	if err != nil {
		l.copyFailed("lay out a page", err)
		return key, false
	}
	payload := l.queue.stage(layout.Size(), leaving)
	if payload == nil {
		if leaving && !l.queue.suspended() { // else the outage was told
			l.unstored.Lost(telemetry.ObstacleSlow, errors.New(givenQueue))
		}
		return key, false
	}
	rows := pageRows{layout: layout, payload: payload, cells: make([][]int32, len(l.caches.groups))}
	for g := range rows.cells {
		rows.cells[g] = slices.Clone(s.cells[g][begin:end])
	}
	later, err := l.gather(rows)
	if err != nil {
		l.copyFailed(copyPageOut, err)
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
	if end-begin == s.size && page < len(s.keys) {
		key = s.keys[page]
	} else {
		key = pagefile.ChainKey(out.Parent, out.Tokens, out.Media)
	}
	l.index.Learn(key, out) // before the push: wrote may remove the page again
	l.queue.push(key, out, s.given, later)
	return key, true
}

// copyPageOut names the copy of a page in the log.
const copyPageOut = "copy a page out of the cache"

// gather copies a page's rows and state, except rows that are copied beside batches.
// gather returns how to copy these, or nil if there are none.
func (l *sealer) gather(rows pageRows) (later *copyOut, err error) {
	now, marker := false, Beside(nil)
	for _, s := range rows.layout.Sections() {
		switch g := groupOf(l.caches.groups, s); {
		case s.Kind == pagefile.KindCell:
		case g >= 0 && l.caches.groups[g].later():
			later, marker = &copyOut{rows: rows}, l.caches.groups[g].Rows.(Beside)
		default:
			now = true
		}
	}
	if now {
		l.device.awaitRows()
	}
	err = gather(l.caches.groups, l.caches.states, rows, func(g int) bool { return !l.caches.groups[g].beside })
	if err == nil {
		err = gatherSpans(l.caches.groups, []pageRows{rows}, func(g int) bool { return l.caches.groups[g].beside && !l.caches.groups[g].later() }, l.bounce)
	}
	if later != nil {
		later.mark = l.device.after(marker)
	}
	return later, err
}

// copyFailed counts a page that could not be copied and is computed again when needed.
func (l *sealer) copyFailed(what string, err error) {
	l.stats.FailedCopies++
	l.tellCopyFailed(what, err)
}

// tellCopyFailed tells of rows that could not be copied. It needs no lock.
func (l *sealer) tellCopyFailed(what string, err error) {
	l.unstored.Lost(telemetry.ObstacleCopy, fmt.Errorf("%s: %w", what, err))
}

// noteState notes the position of a slot's state after a part of an in-flight batch, and stores the
// state where a later request may go on: after the prompt and the answer, every stateEvery tokens, and,
// for the same prompt again, before the last batch of a prompt. endsNext: the next batch is that one.
func (l *sealer) noteState(s *slot, part *batchPart, endsNext bool) {
	s.stateAt = -1
	if !part.shortened && !s.broken {
		s.stateAt = len(s.tokens)
	}
	if part.promptEnd || s.request == requestEnded || len(s.tokens)-s.state.tokens >= l.stateEvery || endsNext {
		l.state(s)
	}
}

// state stores the rows of a slot's last page, full or not, with the state after
// it. No batch may change the state meanwhile.
func (l *sealer) state(s *slot) {
	l.noteDropped()
	n := len(s.tokens)
	if n == 0 || n != s.stateAt || n == s.state.tokens || n > s.private {
		return
	}
	l.seal(s, 0)
	page := (n - 1) / s.size
	if !s.leads(page) {
		return
	}
	if key, ok := l.copyOut(s, page, n, true, true); ok {
		s.state = saved{tokens: n, key: key}
		l.stats.SealedTails++
	}
}
