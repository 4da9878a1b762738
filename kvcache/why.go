package kvcache

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/why"
)

const (
	// whyCloseIn and whyFlushIn bound the time for which closing and a flush wait for explanations.
	whyCloseIn = time.Second
	whyFlushIn = 250 * time.Millisecond

	// givenMax bounds the pages that are remembered because they could not be stored.
	givenMax = 4096
)

// inquiry collects facts about a request's prompt, for the cause of its miss. TieredCausal.mu
// guards it until the prompt is recorded.
type inquiry struct {
	engine.Inquiry
	failed  [2]uint64 // operations of the local and of the remote tier that had failed before
	looked  time.Time // the last look-up
	through bool      // the prompt was computed to its end
	moved   bool      // text was reused at another position

	// intact is the length of the text before a shift broke the slot: it was stored up to there.
	intact int
}

// inquirer explains prompts. mu is TieredCausal.mu, which guards open and given.
type inquirer struct {
	engine.Inquirer
	mu      *sync.Mutex
	running context.Context // of look-ups
	reaches bool            // images attend to text behind them

	open  map[int]*inquiry // by slot, from Restore to EndSequence
	given map[pagefile.Key]givenPage
	ring  []pagefile.Key // of given, the oldest first
}

// givenPage is a page that could not be stored.
type givenPage struct {
	reason string
	since  time.Time
}

// failures are the failed operations of the local and remote tier; 0 in a store that counts none.
func (w *inquirer) failures() (failed [2]uint64) {
	if w.Store != nil {
		failed[0], failed[1] = w.Store.Failures()
	}
	return failed
}

// beginLocked opens an inquiry about the prompt of a slot's request. nameless: the prompt goes on after an image without identity.
func (w *inquirer) beginLocked(seq int, text *prompt, nameless bool) *inquiry {
	q := &inquiry{failed: w.failures()}
	q.Text, q.Private = why.Text{Tokens: text.tokens, Media: text.media}, true
	if nameless {
		q.Facts.Nameless = len(q.Text.Tokens) + 1
	}
	if w.open == nil {
		w.open = make(map[int]*inquiry)
	}
	w.open[seq] = q
	return q
}

// begunLocked notes whether rows of a slot's request may be stored.
func (w *inquirer) begunLocked(seq int, private bool) {
	if q := w.open[seq]; q != nil && q.ID == 0 {
		q.Private, q.ID = private, w.Recents.Add(q.Text, private)
	}
}

// found is the result of looking a prompt's pages up.
type found struct {
	end    int    // of the part that is stored
	parted bool   // the last page goes on with other text
	queued bool   // a page that goes on is queued
	slow   string // the tier in which nothing is known of the rest; see engine.SlowTier
}

// lookedUp notes the result of a look-up.
func (w *inquirer) lookedUp(seq int, f found) {
	failed := w.failures()
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.open[seq]
	if q == nil || f.end < q.Facts.Found {
		return // a second look-up, for less
	}
	q.Facts.Found, q.Facts.Parted, q.Facts.Queued, q.looked = f.end, f.parted, f.queued, time.Now()
	q.Facts.Down = nil
	for i, name := range []string{tier.Local, tier.Remote} {
		if failed[i] > q.failed[i] || f.slow == name {
			q.Facts.Down = append(q.Facts.Down, name)
		}
	}
}

// unread notes why the plan's pages from index `from` on are not used.
func (w *inquirer) unread(p *plan, from int, because why.Unread) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if q := w.open[p.seq]; q != nil && p.by == 0 && !p.ahead && from < len(p.refs) {
		q.Facts.Unread, q.Facts.Tier = because, p.refs[from].Tier
	}
}

// unreadAfter notes that an error has ended a restore.
func (w *inquirer) unreadAfter(seq int, err error) {
	if err == nil || errors.Is(err, tier.ErrNotFound) || errors.Is(err, context.Canceled) {
		return
	}
	if failed := (*writeError)(nil); errors.As(err, &failed) {
		return // of the engine's own cache
	}
	because := why.UnreadDown
	if unreadable(err) {
		because = why.UnreadDamaged
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if q := w.open[seq]; q != nil {
		q.Facts.Unread = because
	}
}

// restoredLocked notes that a restore has ended with so many tokens in the slot. moved: some were computed
// at another position. The result is the inquiry, nil if there is none.
func (w *inquirer) restoredLocked(seq, held int, moved, divisible bool) *inquiry {
	q := w.open[seq]
	if q == nil {
		return nil
	}
	q.Facts.Held, q.Facts.Found, q.moved = held, max(q.Facts.Found, held), moved
	if q.Facts.Found > held && q.Facts.Unread == why.UnreadNone && !divisible {
		q.Facts.Unread = why.UnreadState
	}
	return q
}

// shiftedLocked notes that a shift is about to break a slot whose text is stored so far.
func (w *inquirer) shiftedLocked(seq int, s *slot) {
	if q := w.open[seq]; q != nil && !s.broken {
		q.intact = max(q.intact, len(s.tokens))
	}
}

// givenLocked notes that a page could not be stored; an empty reason that it was.
func (w *inquirer) givenLocked(key pagefile.Key, reason string) {
	if w.Recents == nil {
		return
	}
	if reason == "" {
		delete(w.given, key)
		return
	}
	if w.given == nil {
		w.given = make(map[pagefile.Key]givenPage)
	}
	page, known := w.given[key]
	if !known {
		w.ring, page.since = append(w.ring, key), time.Now()
	}
	page.reason = reason
	w.given[key] = page
	for len(w.ring) > givenMax {
		delete(w.given, w.ring[0])
		w.ring = slices.Delete(w.ring, 0, 1)
	}
}

// Reasons for which pages are given up.
const (
	givenQueue = "more pages waited to be written than may wait"
	givenCap   = "the limit of bytes written in a day was reached"
	givenRoom  = "the store had no room for it"
)

// whyGiven is the reason in words; "" for an error after which writing is tried again.
func whyGiven(err error) string {
	switch {
	case err == nil || !givesUp(err):
		return ""
	case errors.Is(err, ledger.ErrWriteCap):
		return givenCap
	}
	return givenRoom
}

// endedLocked notes the text that a slot's request has computed. There may be no request.
func (w *inquirer) endedLocked(seq int, s *slot) {
	q := w.open[seq]
	delete(w.open, seq)
	if q == nil {
		return
	}
	text, fate := why.Text{Tokens: slices.Clone(s.tokens), Media: slices.Clone(s.media)}, why.Fate{}
	if w.reaches {
		text.Media = pagefile.Unreached(text.Media)
	}
	if s.broken {
		fate = why.Fate{Unstored: max(q.intact, len(s.tokens)), Why: why.FateShift}
		if s.lossy {
			fate.Why = why.FateLossy
		} else if q.moved {
			fate.Detail = "text was reused at another position"
		}
		if n := q.Facts.Nameless; n > 0 && fate.Unstored >= n-1 {
			fate.Why = why.FateImage
		}
		if q.through { // the mirror of a broken slot ends before
			text = q.Text
		}
	}
	w.Done(&q.Inquiry, text, fate)
}

// recordLocked records a prompt, when its miss is explained. There may be no inquiry.
func (w *inquirer) recordLocked(q *inquiry, p telemetry.Prompt) {
	if q == nil {
		w.Record(w.running, nil, p, nil)
		return
	}
	q.through = p.Took > 0
	text, looked := q.Text, q.looked
	w.Record(w.running, &q.Inquiry, p, func(position int) string { return w.givenFor(text, position, looked) })
}

// givenFor returns why the page with the token at a position could not be stored, if that was known
// at a look-up: the prompt's own pages may have been given up since.
func (w *inquirer) givenFor(text why.Text, position int, looked time.Time) string {
	w.mu.Lock()
	none := len(w.given) == 0
	w.mu.Unlock()
	if none {
		return ""
	}
	keys := w.PageKeys(text, position)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range keys {
		if page, given := w.given[key]; given && page.since.Before(looked) {
			return page.reason
		}
	}
	return ""
}
