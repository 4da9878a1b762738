package kvcache

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore"
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
// TieredCausal.mu guards open and given.
type inquirer struct {
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
func newInquirer(opts *Options) inquirer {
	store, _ := opts.Store.(witness.Store) // nil if it is none
	return inquirer{Witness: witness.Witness{
		Store: store, Fingerprint: opts.Fingerprint, PageTokens: opts.PageTokens, Patience: whyPatience, Grace: whyCloseIn / 2,
	}}
}

// inquire opens an inquiry about a prompt, with the account. nameless: the prompt goes on after an
// image without identity.
func (r *restoring) inquire(nameless bool) {
	if r.opts.Recents == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.accounts[r.seq]
	if a == nil {
		return // the cache was closed meanwhile
	}
	q := &inquiry{text: why.Text{Tokens: r.prompt.tokens, Media: r.prompt.media}, private: true}
	q.facts.Tokens, q.facts.Page = a.tokens, r.opts.PageTokens
	if witness, ok := r.opts.Store.(witness.Store); ok {
		q.failed[0], q.failed[1] = witness.Failures()
	}
	if nameless {
		q.facts.Nameless = len(q.text.Tokens) + 1
	}
	r.inquiryEndedLocked(r.seq)
	if r.why.open == nil {
		r.why.open = make(map[int]*inquiry)
	}
	a.asked, r.why.open[r.seq] = q, q
}

// begunLocked notes whether rows of a slot's request may be stored.
func (t *TieredCausal) begunLocked(seq int, private bool) {
	if q := t.why.open[seq]; q != nil && q.id == 0 {
		q.private, q.id = private, t.opts.Recents.Add(q.text, private)
	}
}

// lookedUp notes the result of looking a prompt's pages up.
func (r *restoring) lookedUp(p *plan, refs []diskstore.Ref, limit int, err error, parent pagefile.Key, start int) {
	if r.opts.Recents == nil || r.ahead {
		return
	}
	found, parted := p.base, false
	for _, ref := range refs {
		end := int(ref.Start) + ref.Tokens
		found, parted = max(found, min(end, limit)), ref.Tokens < ref.Stored && end < limit
	}
	queued := r.queue.any(r.extends(&p.prompt, found, parent, start))
	var failed [2]uint64
	if witness, ok := r.opts.Store.(witness.Store); ok {
		failed[0], failed[1] = witness.Failures()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.why.open[r.seq]
	if q == nil || found < q.facts.Found {
		return // a second look-up, for less
	}
	q.facts.Found, q.facts.Parted, q.facts.Queued, q.looked = found, parted, queued, time.Now()
	q.facts.Down = nil
	if failed[0] > q.failed[0] || errors.Is(err, steady.ErrHung) {
		q.facts.Down = append(q.facts.Down, tier.Local)
	}
	if failed[1] > q.failed[1] {
		q.facts.Down = append(q.facts.Down, tier.Remote)
	}
}

// unread notes why the plan's pages from index `from` on are not used.
func (t *TieredCausal) unread(p *plan, from int, because why.Unread) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q := t.why.open[p.seq]; q != nil && p.by == 0 && !p.ahead && from < len(p.refs) {
		q.facts.Unread, q.facts.Tier = because, p.refs[from].Tier
	}
}

// unreadAfter notes that an error has ended the restore.
func (r *restoring) unreadAfter(err error) {
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
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.why.open[r.seq]; q != nil {
		q.facts.Unread = because
	}
}

// inquiredLocked completes an inquiry with the result of the restore.
func (r *restoring) inquiredLocked() {
	q := r.why.open[r.seq]
	if q == nil {
		return
	}
	held := r.result.Held
	q.facts.Held, q.facts.Found, q.moved = held, max(q.facts.Found, held), r.result.Shifted > 0
	if q.facts.Found > held && q.facts.Unread == why.UnreadNone && !r.caches.divisible() {
		q.facts.Unread = why.UnreadState
	}
	at := q.facts.At()
	if at >= r.limit {
		return
	}
	for seq, s := range r.slots {
		if seq == r.seq || at >= s.private {
			continue
		}
		// A page with other text behind is not missing because the slot has it.
		if n := r.prompt.shared(s); n > at && (n == len(s.tokens) || n-at >= r.opts.PageTokens) {
			q.facts.Slot = true
		}
	}
}

// shiftedLocked notes that a shift is about to break a slot whose text is stored so far.
func (t *TieredCausal) shiftedLocked(seq int, s *slot) {
	if q := t.why.open[seq]; q != nil && !s.broken {
		q.intact = max(q.intact, len(s.tokens))
	}
}

// givenLocked notes that a page could not be stored; an empty reason that it was.
func (t *TieredCausal) givenLocked(key pagefile.Key, reason string) {
	w := &t.why
	if t.opts.Recents == nil {
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

// inquiryEndedLocked notes the text that a slot's request has computed. There may be no request.
func (t *TieredCausal) inquiryEndedLocked(seq int) {
	q := t.why.open[seq]
	delete(t.why.open, seq)
	if q == nil || q.id == 0 {
		return
	}
	s := t.slotLocked(seq)
	text, fate := why.Text{Tokens: slices.Clone(s.tokens), Media: slices.Clone(s.media)}, why.Fate{}
	if t.opts.Reach > 0 {
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
	done := func() { t.opts.Recents.Done(q.id, text, q.private, fate) }
	if !t.why.Submit(done) {
		done() // or others would wait for this request
	}
}

// explain records a prompt, when its miss is explained.
func (t *TieredCausal) explain(q *inquiry, p telemetry.Prompt) {
	facts, looked := q.facts, q.looked
	text, private, id := q.text, q.private, q.id
	facts.Held = p.Tokens - p.Computed
	q.through = p.Took > 0
	job := func() {
		if id == 0 {
			id = t.opts.Recents.Add(text, true) // a request that was given up during its restore
		}
		facts.Similar = t.opts.Recents.Compare(id, text, private, facts.Held, facts.Page)
		if p.Computed > 1 {
			facts.Given = t.givenFor(text, facts.At(), looked)
			t.why.Complete(t.running, &facts, text, p.At)
			p.Miss = why.Explain(facts)
		}
		t.opts.Meter.Prompt(p)
	}
	if !t.why.Submit(job) {
		p.Miss = why.Explain(facts)
		t.opts.Meter.Prompt(p)
	}
}

// givenFor returns why the page with the token at a position could not be stored, if that was known
// at a look-up: the prompt's own pages may have been given up since.
func (t *TieredCausal) givenFor(text why.Text, position int, looked time.Time) string {
	t.mu.Lock()
	none := len(t.why.given) == 0
	t.mu.Unlock()
	if none {
		return ""
	}
	keys := t.why.PageKeys(text, position)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range keys {
		if page, given := t.why.given[key]; given && page.since.Before(looked) {
			return page.reason
		}
	}
	return ""
}
