package llamatier

import (
	"context"
	"slices"
)

// A request of which nothing is known runs in a slot that the engine chose itself: from its begin on,
// the rows of no slot are known. Actions on slots and such requests take turns where they can: an
// action that llama-server holds back for the request could in turn hold back the requests behind it.

// beginUnknown notes that such a request begins, after all actions on slots have ended or ctx has.
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
}

// endUnknown notes that such a request has ended, which may have computed in any slot.
func (t *table) endUnknown(computed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unknown--
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
	action := make(chan struct{})
	t.acting = append(t.acting, action)
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.acting = slices.DeleteFunc(t.acting, func(c chan struct{}) bool { return c == action })
		close(action)
	}, nil
}

// holdBack notes whether llama-server holds an action on a slot back.
func (t *table) holdBack(s *slot, acting bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.acting = acting
}
