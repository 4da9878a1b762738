package kvcache

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/why"
)

const (
	// whyPatience bounds the look-ups for one prompt, behind its request, and whyCloseIn the
	// rest of them when the cache is closed.
	whyPatience = 3 * time.Second
	whyCloseIn  = time.Second

	// whyJobsMax bounds the prompts that wait to be explained. Further ones are recorded without
	// look-ups.
	whyJobsMax = 64

	// givenMax bounds the pages that are remembered because they could not be stored.
	givenMax = 4096
)

// Witness is a [Store] that may know why a page is not there. [diskstore.Store] is one.
// Its methods are called behind requests.
type Witness interface {
	Gone(ctx context.Context, keys ...pagefile.Key) (diskstore.Grave, bool)
	Elsewhere(ctx context.Context, tokens []int32, media []pagefile.Media) []diskstore.Elsewhere
	Identity() map[string]string
	Stats() diskstore.Stats
	Failures() (local, remote uint64)
}

// inquiry collects facts about a request's prompt, for the cause of its miss. TieredCausal.mu
// guards it until the prompt is recorded.
type inquiry struct {
	id      uint64 // in Options.Recents; 0 before the request has begun
	text    why.Text
	private bool
	facts   why.Facts
	failed  [2]uint64 // operations of the local and of the remote tier that had failed before
	through bool      // the prompt was computed to its end
	moved   bool      // text was reused at another position

	// intact is the length of the text before a shift broke the slot: it was stored up to there.
	intact int
}

// inquirer explains prompts, one after another, in a goroutine that exists while there are any.
// TieredCausal.mu guards open and given.
type inquirer struct {
	open  map[int]*inquiry // by slot, from Restore to EndSequence
	given map[pagefile.Key]string
	ring  []pagefile.Key // of given, the oldest first
	guard steady.Guard   // a look-up that hangs is not the store's

	patience time.Duration // whyPatience, except in tests

	mu      sync.Mutex
	jobs    []func()
	running bool
	idle    chan struct{} // closed while the goroutine does not exist; nil before the first
}

// submit runs a job after those before it. submit reports false when too many wait.
func (w *inquirer) submit(job func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.jobs) >= whyJobsMax {
		return false
	}
	w.jobs = append(w.jobs, job)
	if !w.running {
		w.running, w.idle = true, make(chan struct{})
		go w.run()
	}
	return true
}

func (w *inquirer) run() {
	for {
		w.mu.Lock()
		if len(w.jobs) == 0 {
			w.running = false
			close(w.idle)
			w.mu.Unlock()
			return
		}
		job := w.jobs[0]
		w.jobs = slices.Delete(w.jobs, 0, 1)
		w.mu.Unlock()
		job()
	}
}

// wait waits until no job is left, at most for some time.
func (w *inquirer) wait(most time.Duration) {
	w.mu.Lock()
	idle := w.idle
	w.mu.Unlock()
	if idle == nil {
		return
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
	}
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
	q := &inquiry{text: why.Text{Tokens: r.prompt.tokens, Media: r.prompt.media}, private: true}
	q.facts.Tokens, q.facts.Page = a.tokens, r.opts.PageTokens
	if witness, ok := r.opts.Store.(Witness); ok {
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
	if witness, ok := r.opts.Store.(Witness); ok {
		failed[0], failed[1] = witness.Failures()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.why.open[r.seq]
	if q == nil || found < q.facts.Found {
		return // a second look-up, for less
	}
	q.facts.Found, q.facts.Parted, q.facts.Queued = found, parted, queued
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
	if q.facts.Found > held && q.facts.Unread == why.UnreadNone && !r.divisible() {
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
		w.given = make(map[pagefile.Key]string)
	}
	if _, known := w.given[key]; !known {
		w.ring = append(w.ring, key)
	}
	w.given[key] = reason
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
	if s.broken {
		fate = why.Fate{Unstored: max(q.intact, len(s.tokens)), Why: why.FateShift}
		if q.moved {
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
	if !t.why.submit(done) {
		done() // or others would wait for this request
	}
}

// explain records a prompt, when its miss is explained.
func (t *TieredCausal) explain(q *inquiry, p telemetry.Prompt) {
	facts, given := q.facts, t.givenFor(q)
	text, private, id := q.text, q.private, q.id
	facts.Held = p.Tokens - p.Computed
	q.through = p.Took > 0
	job := func() {
		if id == 0 {
			id = t.opts.Recents.Add(text, true) // a request that was given up during its restore
		}
		facts.Similar = t.opts.Recents.Compare(id, text, private, facts.Held, facts.Page)
		facts.Given = given
		if p.Computed > 1 {
			t.lookInto(&facts, text, p.At)
			p.Miss = why.Explain(facts)
		}
		t.opts.Meter.Prompt(p)
	}
	if !t.why.submit(job) {
		facts.Given, p.Miss = given, why.Explain(facts)
		t.opts.Meter.Prompt(p)
	}
}

// givenFor returns why the page with the first token that was not restored could not be stored.
// t.mu is held.
func (t *TieredCausal) givenFor(q *inquiry) string {
	if len(t.why.given) == 0 {
		return ""
	}
	keys := t.pageKeys(q.text, q.facts.At())
	for _, key := range keys {
		if reason := t.why.given[key]; reason != "" {
			return reason
		}
	}
	return ""
}

// pageKeys returns the keys of the page with the token at a position: that of the full page first,
// then those of tails of the text that have the token.
func (t *TieredCausal) pageKeys(text why.Text, position int) (keys []pagefile.Key) {
	size, parent := t.opts.PageTokens, t.opts.Fingerprint
	begin := position / size * size
	for at := 0; at < begin; at += size {
		parent = pagefile.ChainKey(parent, text.Tokens[at:at+size], pagefile.MediaWithin(text.Media, at, size))
	}
	for end := min(begin+size, len(text.Tokens)); end > position; end-- {
		keys = append(keys, pagefile.ChainKey(parent, text.Tokens[begin:end], pagefile.MediaWithin(text.Media, begin, end-begin)))
	}
	return keys
}

// lookInto asks the store, in bounded time. Tombstones that are younger than the
// look-up are not its reason.
func (t *TieredCausal) lookInto(facts *why.Facts, text why.Text, began time.Time) {
	witness, ok := t.opts.Store.(Witness)
	if !ok || why.Unused(*facts) {
		return
	}
	found, _ := steady.Do(t.running, &t.why.guard, steady.Wait{Most: t.why.patience, Grace: whyCloseIn / 2}, func() (why.Facts, error) {
		ctx, cancel := context.WithTimeout(t.running, t.why.patience)
		defer cancel()
		return t.testimony(ctx, witness, *facts, text, began), nil
	}, func(why.Facts, error) {})
	if found.Tokens > 0 {
		*facts = found
	}
}

// testimony completes facts by those that a store knows.
func (t *TieredCausal) testimony(ctx context.Context, store Witness, facts why.Facts, text why.Text, began time.Time) why.Facts {
	stats := store.Stats()
	facts.Down = slices.Clone(facts.Down)
	for name, down := range map[string]bool{tier.Local: stats.Local.Down, tier.Remote: stats.Remote.Down} {
		if down && !slices.Contains(facts.Down, name) {
			facts.Down = append(facts.Down, name)
		}
	}
	slices.Sort(facts.Down)
	if keys := t.pageKeys(text, facts.At()); len(keys) > 0 {
		if g, gone := store.Gone(ctx, keys...); gone && g.Reason == diskstore.GraveDamaged {
			facts.Damaged = true
		} else if gone && g.When.Before(began) {
			facts.Grave = &why.Grave{When: g.When, From: g.Tier, Reason: g.Reason.String()}
		}
	}
	if !why.Open(facts) {
		return facts
	}
	ours := store.Identity()
	for _, e := range store.Elsewhere(ctx, text.Tokens, text.Media) {
		differs := why.Differs(ours, e.Identity)
		if e.PageTokens != t.opts.PageTokens && len(differs) == 0 {
			differs["page_tokens"] = ""
		}
		facts.Others = append(facts.Others, why.Other{Tokens: e.Tokens, Differs: differs})
	}
	return facts
}
