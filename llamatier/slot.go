package llamatier

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// slot is one of the engine's slots. Tier.mu guards its fields; the goroutine that made the
// slot busy may read tokens, dirty and broken without.
type slot struct {
	id   int
	busy bool      // a request or a save uses it
	used time.Time // end of the last request

	tokens      []int32 // that the slot holds at least: the last prompt
	rest        []int32 // Request.Rest of the last prompt
	prompt      int     // number of tokens of the last prompt
	ends        []int   // tokens before each end that was stored, in order
	loaded      int     // tokens that were restored last: the engine cannot go back before them
	checkpoints int64   // bytes of the checkpoints in the last file of the slot
	dirty       bool    // tokens were computed since the slot was saved
	tails       bool    // tokens were computed since tails were stored
	private     bool    // the last request must not be stored
	broken      bool    // rows from before the last request must not be stored
	lossy       bool    // broken, because some of these rows came from lossy pages

	acting  bool     // llama-server holds an action back
	unknown bool     // a request of which nothing is known, and which is over, may have used the slot
	judged  bool     // it is known whether the last answer filled the slot
	last    *Answer  // of the last request; nil if the engine was not heard to the end
	pending *unheard // nil if all answers that are not judged were heard to the end

	idle interface{ Stop() bool } // saves the slot; nil: nothing to save

	seen telemetry.Slot // as Slots shows it
}

// ended returns the number of tokens before the last end that was stored; 0 without one.
func (s *slot) ended() int {
	if len(s.ends) == 0 {
		return 0
	}
	return s.ends[len(s.ends)-1]
}

// rewound notes that the engine is about to keep no more than a number of tokens.
func (s *slot) rewound(held int) {
	for s.ended() > held {
		s.ends = s.ends[:len(s.ends)-1]
	}
}

// unheard are the answers in a slot from the first one on of which the engine was not heard to the
// end, and which are not judged yet.
type unheard struct {
	counted int  // at most Engine.Generated before them
	prompt  int  // number of tokens of the longest of their prompts
	media   bool // a prompt has an image or a sound, of which nobody counts the tokens
}

// unheard reports whether the client of a busy slot's last request may have gone away: the
// engine notices some time later.
func (s *slot) unheard() bool { return !s.judged && s.last == nil }

// unsaved reports whether a free slot has rows that are not stored, and that a save can store at
// once.
func (s *slot) unsaved() bool {
	known := s.last != nil && s.last.Cached == 0 || !s.broken // see Tier.judge
	return (s.dirty || s.tails) && known && !s.unknown && !s.private && !s.unheard() && !s.acting
}

// spoiled reports whether the rows of a busy slot must not be stored, so that no row computed
// behind them may be, until the slot is emptied or restored. It reports false while a request
// runs of which nothing is known: any slot is soon spoiled again.
func (t *Tier) spoiled(s *slot) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unknown == 0 && (s.broken || s.private || s.unknown)
}

// unknownIn reports whether a request of which nothing is known may have used a slot.
func (t *Tier) unknownIn(s *slot) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return s.unknown || t.unknown > 0
}

// emptied notes that a busy slot holds nothing.
func (s *slot) emptied() {
	s.tokens, s.rest, s.prompt, s.ends, s.loaded, s.checkpoints, s.dirty, s.tails = nil, nil, 0, nil, 0, 0, false, false
	s.private, s.broken, s.lossy, s.judged, s.pending = false, false, false, true, nil
}

// fileSize is about the size of the file into which a slot with a number of tokens is saved. It has
// checkpoints as well, which may be more than all rows: about those of the last save.
func (s *slot) fileSize(f form, tokens int) int64 { return f.fileSize(tokens) + s.checkpoints }

// commonPrefix returns the number of tokens that two sequences share at their beginning.
func commonPrefix(a, b []int32) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// similar is the part of a prompt that a slot must hold to be chosen for that reason, as in
// llama-server.
const similar = 0.1

// shared is the number of tokens that a prompt shares with the last one of a slot. Images and
// sounds count as tokens.
func (s *slot) shared(r Request) int {
	n := commonPrefix(s.tokens, r.Tokens)
	if n == len(r.Tokens) {
		n += commonPrefix(s.rest, r.Rest)
	}
	return n
}

// takeLocked makes a free slot busy: the one that the request asks for, or the best one. It returns
// nil if there is none.
func (t *Tier) takeLocked(r Request) *slot {
	return t.chooseLocked(r, func(s *slot) bool { return r.Slot < 0 || s.id == r.Slot%len(t.slots) }).takeLocked()
}

// chooseLocked returns the free slot for a request, of those that suit: the one that holds most of
// the prompt, or the one unused for longest. It returns nil if there is none.
func (t *Tier) chooseLocked(r Request, suits func(*slot) bool) *slot {
	free := func(s *slot) bool { return !s.busy && suits(s) }
	best, most := t.oldestLocked(free), int(similar*float64(len(r.Tokens)+len(r.Rest)))
	for _, s := range t.slots {
		if !free(s) {
			continue
		}
		if n := s.shared(r); n > most {
			best, most = s, n
		}
	}
	return best
}

// takeIdle makes the slot busy that holds tokens and has been free for longest, other than one.
// It returns nil if there is none.
func (t *Tier) takeIdle(than *slot) *slot {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.oldestLocked(func(s *slot) bool { return s != than && !s.busy && len(s.tokens) > 0 }).takeLocked()
}

// oldestLocked returns the slot unused for longest, of those that suit; nil if none does.
func (t *Tier) oldestLocked(suits func(*slot) bool) (oldest *slot) {
	for _, s := range t.slots {
		if suits(s) && (oldest == nil || s.used.Before(oldest.used)) {
			oldest = s
		}
	}
	return oldest
}

// takeLocked makes a slot busy, which is not saved for being idle any more, and returns it. A nil
// slot stays nil.
func (s *slot) takeLocked() *slot {
	if s == nil {
		return nil
	}
	s.busy = true
	if s.idle != nil {
		s.idle.Stop()
		s.idle = nil
	}
	return s
}

// take waits for a slot. Requests get slots in the order in which they came.
func (t *Tier) take(ctx context.Context, r Request) (*slot, error) {
	t.mu.Lock()
	w := &waiter{request: r, got: make(chan *slot, 1)}
	t.waiting = append(t.waiting, w)
	t.serveLocked()
	t.mu.Unlock()
	select {
	case s := <-w.got:
		if s == nil {
			return nil, ErrClosed
		}
		return s, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, other := range t.waiting {
		if other == w {
			t.waiting = append(t.waiting[:i], t.waiting[i+1:]...)
			return nil, ctx.Err()
		}
	}
	if s := <-w.got; s != nil { // it came just now
		t.giveBackLocked(s)
	}
	return nil, ctx.Err()
}

// waiter is a request that waits for a slot.
type waiter struct {
	request Request
	got     chan *slot // receives nil when the Tier closes
}

// serveLocked gives free slots to requests that wait. A request for a certain slot does not
// hold up the requests behind it.
func (t *Tier) serveLocked() {
	var left []*waiter
	for _, w := range t.waiting {
		if s := t.takeLocked(w.request); s != nil {
			w.got <- s
		} else {
			left = append(left, w)
		}
	}
	t.waiting = left
}

// giveLocked makes a slot free.
func (t *Tier) giveLocked(s *slot) {
	s.busy = false
	t.serveLocked()
}

// give makes a slot free.
func (t *Tier) give(s *slot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.giveLocked(s)
}
