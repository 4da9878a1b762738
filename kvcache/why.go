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
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/why"
	"github.com/kvtier/kvtier/telemetry/why/witness"
)

const (
	// whyPatience bounds the look-ups for one prompt, behind its request, and whyCloseIn the
	// rest of them when the cache is closed.
	whyPatience = 3 * time.Second
	whyCloseIn  = time.Second

	// whyFlushIn bounds the time for which a flush waits for explanations.
	whyFlushIn = 250 * time.Millisecond

	// givenMax bounds the pages that are remembered because they could not be stored.
	givenMax = 4096
)

// inquiry collects facts about a request's prompt, for the cause of its miss. TieredCausal.mu
// guards it until the prompt is recorded.
type inquiry struct {
	id      uint64 // in Options.Recents; 0 before the request has begun
	text    why.Text
	private bool
	facts   why.Facts
	failed  [2]uint64 // operations of the local and of the remote tier that had failed before
	looked  time.Time // the last look-up
	through bool      // the prompt was computed to its end
	moved   bool      // text was reused at another position

	// intact is the length of the text before a shift broke the slot: it was stored up to there.
	intact int
}

// inquirer explains prompts, one after another, in a goroutine that exists while there are any.
// mu is TieredCausal.mu, which guards open and given.
type inquirer struct {
	mu      *sync.Mutex
	recents *why.Recents // nil: nothing is explained
	meter   *telemetry.Meter
	running context.Context // of look-ups
	reaches bool            // images attend to text behind them

	open  map[int]*inquiry // by slot, from Restore to EndSequence
	given map[pagefile.Key]givenPage
	ring  []pagefile.Key // of given, the oldest first

	witness.Queue
	witness.Witness
}

// givenPage is a page that could not be stored.
type givenPage struct {
	reason string
	since  time.Time
}

// newInquirer returns an inquirer that asks a cache's store.
func newInquirer(mu *sync.Mutex, running context.Context, opts *Options) inquirer {
	store, _ := opts.Store.(witness.Store) // nil if it is none
	return inquirer{mu: mu, recents: opts.Recents, meter: opts.Meter, running: running, reaches: opts.Reach > 0, Witness: witness.Witness{
		Store: store, Fingerprint: opts.Fingerprint, PageTokens: opts.PageTokens, Patience: whyPatience, Grace: whyCloseIn / 2,
	}}
}

// failures are the operations of the local and of the remote tier that have failed; zero in a store
// that does not count them.
func (w *inquirer) failures() (failed [2]uint64) {
	if w.Store != nil {
		failed[0], failed[1] = w.Store.Failures()
	}
	return failed
}

// beginLocked opens an inquiry about the prompt of a slot's request. nameless: the prompt goes on after an image without identity.
func (w *inquirer) beginLocked(seq, tokens int, text *prompt, nameless bool) *inquiry {
	q := &inquiry{text: why.Text{Tokens: text.tokens, Media: text.media}, private: true, failed: w.failures()}
	q.facts.Tokens, q.facts.Page = tokens, w.PageTokens
	if nameless {
		q.facts.Nameless = len(q.text.Tokens) + 1
	}
	if w.open == nil {
		w.open = make(map[int]*inquiry)
	}
	w.open[seq] = q
	return q
}

// begunLocked notes whether rows of a slot's request may be stored.
func (w *inquirer) begunLocked(seq int, private bool) {
	if q := w.open[seq]; q != nil && q.id == 0 {
		q.private, q.id = private, w.recents.Add(q.text, private)
	}
}

// found is the result of looking a prompt's pages up.
type found struct {
	end    int   // of the part that is stored
	parted bool  // the last page goes on with other text
	queued bool  // a page that goes on is queued
	err    error // nothing is known of the pages
}

// lookedUp notes the result of a look-up.
func (w *inquirer) lookedUp(seq int, f found) {
	failed := w.failures()
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.open[seq]
	if q == nil || f.end < q.facts.Found {
		return // a second look-up, for less
	}
	q.facts.Found, q.facts.Parted, q.facts.Queued, q.looked = f.end, f.parted, f.queued, time.Now()
	q.facts.Down = nil
	if failed[0] > q.failed[0] || errors.Is(f.err, steady.ErrHung) {
		q.facts.Down = append(q.facts.Down, tier.Local)
	}
	if failed[1] > q.failed[1] {
		q.facts.Down = append(q.facts.Down, tier.Remote)
	}
}

// unread notes why the plan's pages from index `from` on are not used.
func (w *inquirer) unread(p *plan, from int, because why.Unread) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if q := w.open[p.seq]; q != nil && p.by == 0 && !p.ahead && from < len(p.refs) {
		q.facts.Unread, q.facts.Tier = because, p.refs[from].Tier
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
		q.facts.Unread = because
	}
}

// restoredLocked notes that a restore has ended with so many tokens in the slot. moved: some were computed
// at another position. The result is the inquiry, nil if there is none.
func (w *inquirer) restoredLocked(seq, held int, moved, divisible bool) *inquiry {
	q := w.open[seq]
	if q == nil {
		return nil
	}
	q.facts.Held, q.facts.Found, q.moved = held, max(q.facts.Found, held), moved
	if q.facts.Found > held && q.facts.Unread == why.UnreadNone && !divisible {
		q.facts.Unread = why.UnreadState
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
	if w.recents == nil {
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
	if q == nil || q.id == 0 {
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
		if n := q.facts.Nameless; n > 0 && fate.Unstored >= n-1 {
			fate.Why = why.FateImage
		}
		if q.through { // the mirror of a broken slot ends before
			text = q.text
		}
	}
	done := func() { w.recents.Done(q.id, text, q.private, fate) }
	if !w.Submit(done) {
		done() // or others would wait for this request
	}
}

// explain records a prompt, when its miss is explained.
func (w *inquirer) explain(q *inquiry, p telemetry.Prompt) {
	facts, looked := q.facts, q.looked
	text, private, id := q.text, q.private, q.id
	facts.Held = p.Tokens - p.Computed
	q.through = p.Took > 0
	job := func() {
		if id == 0 {
			id = w.recents.Add(text, true) // a request that was given up during its restore
		}
		facts.Similar = w.recents.Compare(id, text, private, facts.Held, facts.Page)
		if p.Computed > 1 {
			facts.Given = w.givenFor(text, facts.At(), looked)
			w.Complete(w.running, &facts, text, p.At)
			p.Miss = why.Explain(facts)
		}
		w.meter.Prompt(p)
	}
	if !w.Submit(job) {
		p.Miss = why.Explain(facts)
		w.meter.Prompt(p)
	}
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
