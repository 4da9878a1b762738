package llamatier

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// table has the engine's slots, and the requests that wait for one.
type table struct {
	slots      []*slot                              // always the same
	similarity float64                              // Options.Similarity
	later      func(*slot) interface{ Stop() bool } // has an idle slot saved some time later

	mu      sync.Mutex // of the slots' fields as well
	waiting []*waiter
	closed  bool
	unknown int             // requests that run in slots which the engine chose
	passed  uint64          // all of these that have begun
	acting  []chan struct{} // one for each action that is waited for, closed after it
	passes  int             // requests that have leave to run in any slot: see pass
	passer  Tenant          // whose they are, while there is one
	left    time.Time       // when one of them was given up, or failed: the engine may begin some of it later
	late    time.Duration   // for which it may
	isShut  bool            // no request begins in a free slot: see search

	searching chan struct{} // one element while there is a search
}

// newTable returns the table of some slots that hold nothing.
func newTable(slots int, similarity float64, later func(*slot) interface{ Stop() bool }) *table {
	t := &table{similarity: similarity, later: later, late: lateMost, searching: make(chan struct{}, 1)}
	for id := range slots {
		t.slots = append(t.slots, &slot{id: id, sequence: sequence{judged: true}})
	}
	return t
}

type waiter struct {
	request Request
	passes  bool       // it waits for leave to run in any slot, and gets no slot
	got     chan grant // has room
}

// grant is what a waiter gets.
type grant struct {
	slot *slot // nil for one that passes
	err  error // ErrClosed
}

// take waits for a slot. Requests get slots in the order in which they came.
func (t *table) take(ctx context.Context, r Request) (*slot, error) {
	got, err := t.wait(ctx, &waiter{request: r, got: make(chan grant, 1)})
	return got.slot, err
}

// wait waits for what a waiter gets.
func (t *table) wait(ctx context.Context, w *waiter) (grant, error) {
	t.mu.Lock()
	t.waiting = append(t.waiting, w)
	t.serveLocked()
	t.mu.Unlock()
	select {
	case got := <-w.got:
		return got, got.err
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.waiting, w); i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
		t.serveLocked() // others may have waited for it
		return grant{}, ctx.Err()
	}
	switch got := <-w.got; { // it came just now
	case got.slot != nil:
		t.giveBackLocked(got.slot)
	case got.err == nil:
		t.leaveLocked()
	}
	return grant{}, ctx.Err()
}

// takeFree makes a free slot busy, and returns nil if there is none.
func (t *table) takeFree(r Request) *slot {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.takeLocked(r)
}

// serveLocked gives free slots to requests that wait. A request for a certain slot does not
// hold up the requests behind it.
func (t *table) serveLocked() {
	if t.isShut && !t.closed {
		return
	}
	var left []*waiter
	for _, w := range t.waiting {
		if !t.grantLocked(w, left) {
			left = append(left, w)
		}
	}
	t.waiting = left
}

// grantLocked gives a waiter what it waits for, before whom others go on waiting, and reports whether it could.
func (t *table) grantLocked(w *waiter, before []*waiter) bool {
	if w.passes {
		passes := t.passLocked(w.request.Tenant, before)
		if passes {
			w.got <- grant{}
		}
		return passes
	}
	s := t.takeLocked(w.request)
	if s != nil {
		w.got <- grant{slot: s}
	}
	return s != nil
}

// takeLocked makes a free slot busy: the one that the request asks for, or the best one. It returns
// nil if there is none.
func (t *table) takeLocked(r Request) *slot {
	return t.chooseLocked(r, func(s *slot) bool { return r.Slot < 0 || s.id == r.Slot%len(t.slots) }).takeLocked(r.Tenant)
}

// similar is the part of a prompt that a slot must hold to be chosen for that reason, where the choice is ours.
const similar = 0.1

// unfound is the greatest number of a prompt's tokens for which the engine does not choose a slot that holds them.
func (t *table) unfound(prompt int) int {
	if t.similarity == 0 {
		return prompt
	}
	return int(min(max(0, t.similarity), 1) * float64(prompt))
}

// chooseLocked returns the free slot for a request, of those that suit: the one that holds most of
// the prompt, or the one unused for longest. It returns nil if there is none.
func (t *table) chooseLocked(r Request, suits func(*slot) bool) *slot {
	if t.shutsOutLocked(r.Tenant) {
		return nil
	}
	free := func(s *slot) bool { return !s.busy && suits(s) }
	prompt := len(r.Tokens) + len(r.Rest)
	best, most := t.oldestLocked(free), int(similar*float64(prompt))
	if r.Loose {
		most = t.unfound(prompt)
	}
	for _, s := range t.slots {
		if r.anywhere() && free(s) && s.used.Equal(best.used) {
			best = s // of those never used, llama-server takes the last
		}
	}
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

// oldestLocked returns the slot unused for longest, of those that suit; nil if none does.
func (t *table) oldestLocked(suits func(*slot) bool) (oldest *slot) {
	for _, s := range t.slots {
		if suits(s) && (oldest == nil || s.used.Before(oldest.used)) {
			oldest = s
		}
	}
	return oldest
}

// takeLocked makes a slot busy for a tenant, which is not saved for being idle any more, and returns it. A nil
// slot stays nil.
func (s *slot) takeLocked(wants Tenant) *slot {
	if s == nil {
		return nil
	}
	s.busy, s.wants = true, wants
	if s.idle != nil {
		s.idle.Stop()
		s.idle = nil
	}
	return s
}

// takeOther makes a slot busy in which the engine runs nothing, for a request that names none, and
// gives a busy slot back. It returns nil if no such slot is free.
func (t *table) takeOther(s *slot, r Request, slots []Slot) *slot {
	t.mu.Lock()
	defer t.mu.Unlock()
	other := t.chooseLocked(r, func(o *slot) bool { return r.Slot < 0 && o.id < len(slots) && !slots[o.id].Running }).takeLocked(r.Tenant)
	if other != nil {
		t.giveBackLocked(s)
	}
	return other
}

// takeIdle makes the slot busy that holds tokens and has been free for longest, other than one.
// It returns nil if there is none.
func (t *table) takeIdle(than *slot) *slot {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.oldestLocked(func(s *slot) bool { return s != than && !s.busy && len(s.tokens) > 0 }).takeOwnLocked()
}

// takeUnsaved makes the slot busy that has been free for longest, of those in which there is
// something to save. It returns nil if there is none.
func (t *table) takeUnsaved() *slot {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.unknown > 0 {
		return nil
	}
	return t.oldestLocked(func(s *slot) bool { return !s.busy && s.storable() && !s.unknown && !s.acting }).takeOwnLocked()
}

// takeUnused makes a slot busy that was given back, and reports whether no request has taken it since.
func (t *table) takeUnused(s *slot) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.busy || s.idle == nil || t.closed {
		return false
	}
	s.takeOwnLocked()
	return true
}

// begin notes that a request begins in a busy slot, which is given up at once if the table is closed.
func (t *table) begin(s *slot, r Request) Served {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.cancel, s.loose = r.Cancel, r.Loose
	if s.late = s.mayBegin(); !s.late {
		s.gone = time.Time{}
	}
	s.begun++
	if t.closed {
		r.Cancel()
	}
	return Served{s.id, s.begun}
}

// end makes the slot of a request free, with a new description, and has it saved some time later.
func (t *table) end(s *slot, seen telemetry.Slot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.seen, s.used = seen, time.Now()
	t.giveBackLocked(s)
}

// gaveUp notes that a request in a busy slot was given up, which the engine may not have begun.
func (t *table) gaveUp(s *slot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.gone, s.late = time.Now(), true
}

// drop makes the slot of a request free that the engine has not got, so that nothing goes on with it.
func (t *table) drop(s *slot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.begun++
	t.giveBackLocked(s)
}

// giveBack makes a slot free in which no request has run, and has it saved some time later.
func (t *table) giveBack(s *slot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.giveBackLocked(s)
}

func (t *table) giveBackLocked(s *slot) {
	s.idle = t.later(s)
	t.giveLocked(s)
}

func (t *table) give(s *slot) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.giveLocked(s)
}

func (t *table) giveLocked(s *slot) {
	s.busy, s.cancel = false, nil
	t.serveLocked()
}

func (t *table) isClosed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed
}

// close gives up the requests that run, and refuses those that wait.
func (t *table) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, w := range t.waiting {
		w.got <- grant{err: ErrClosed}
	}
	t.waiting = nil
	for _, s := range t.slots {
		if s.cancel != nil {
			s.cancel()
		}
	}
}

// beside counts the requests in other slots than one, and those of which nothing is known.
func (t *table) beside(one *slot) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.unknown
	for _, s := range t.slots {
		if s != one && s.busy && s.cancel != nil {
			n++
		}
	}
	return n
}

// unsavedBeside reports whether a free slot, of which something is not stored, holds more than a number
// of a prompt's tokens. The request in a busy slot may be replacing its tokens.
func (t *table) unsavedBeside(of Tenant, tokens []int32, found int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.slots, func(s *slot) bool {
		return !s.busy && s.tenant == of && (s.dirty || s.tails) && commonPrefix(s.tokens, tokens) > found
	})
}

// describe describes the slots, for people. Pages of a slot in a tier are not counted here.
func (t *table) describe() []telemetry.Slot {
	t.mu.Lock()
	defer t.mu.Unlock()
	slots := make([]telemetry.Slot, 0, len(t.slots))
	for _, s := range t.slots {
		v := s.seen
		v.ID, v.Busy = s.id, s.busy
		slots = append(slots, v)
	}
	return slots
}

// A request of which nothing is known runs in a slot that the engine chose itself: from its begin on,
// the rows of no slot are known. Actions on slots and such requests take turns where they can: an
// action that llama-server holds back for the request could in turn hold back the requests behind it.

// beginUnknown notes that such a request begins, which has leave, after all actions on slots have ended or ctx has.
func (t *table) beginUnknown(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for waits := true; waits && len(t.acting) > 0; {
		action := t.acting[0]
		t.mu.Unlock()
		select {
		case <-action:
		case <-ctx.Done():
			waits = false
		}
		t.mu.Lock()
	}
	t.unknown++
	t.passed++
}

// endUnknown notes that such a request has ended, which may have computed in any slot. The engine may go on with
// one that was not heard to its end.
func (t *table) endUnknown(computed, heard bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unknown--
	if !heard {
		t.left = time.Now()
	}
	defer t.leaveLocked()
	for _, s := range t.slots {
		s.unknown = s.unknown || computed
	}
}

// unknownRuns reports whether a request of which nothing is known runs in any slot.
func (t *table) unknownRuns() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unknown > 0
}

// unknownIn reports whether a request of which nothing is known may have used a slot.
func (t *table) unknownIn(s *slot) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return s.unknown || t.unknown > 0
}

// breakUnknown notes that the rows of a busy slot must not be stored if a request of which nothing is
// known, and which is over, may have used the slot, and reports whether that is so.
func (t *table) breakUnknown(s *slot) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := s.unknown
	s.broken, s.unknown = s.broken || was, false
	return was
}

// spoiled reports whether the rows of a busy slot must not be stored, so that no row computed
// behind them may be, until the slot is emptied or restored. It reports false while a request
// runs of which nothing is known: any slot is soon spoiled again.
func (t *table) spoiled(s *slot) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unknown == 0 && (s.broken || s.private || s.unknown)
}

// replacing notes that an action begins after which a busy slot holds nothing from before, until the
// caller calls done with the action's error. A request of which nothing is known may use the slot as
// soon as llama-server has carried out the action.
func (t *table) replacing(s *slot) (done func(err error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := s.unknown
	s.unknown = false
	return func(err error) {
		t.mu.Lock()
		defer t.mu.Unlock()
		s.unknown = s.unknown || was && err != nil
	}
}

// enter notes that an action on a slot is waited for, until the caller calls leave.
func (t *table) enter(s *slot) (leave func(), err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.acting {
		return nil, because(CauseBusy, "llama-server has not carried out the last action on it")
	}
	action := t.actLocked()
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.actedLocked(action)
	}, nil
}

// actLocked begins an action, for which requests of which nothing is known wait, until actedLocked.
func (t *table) actLocked() (action chan struct{}) {
	action = make(chan struct{})
	t.acting = append(t.acting, action)
	return action
}

func (t *table) actedLocked(action chan struct{}) {
	t.acting = slices.DeleteFunc(t.acting, func(c chan struct{}) bool { return c == action })
	close(action)
}

// holdBack notes whether llama-server holds an action on a slot back.
func (t *table) holdBack(s *slot, acting bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.acting = acting
}
