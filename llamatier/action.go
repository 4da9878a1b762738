package llamatier

import (
	"context"
	"slices"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// patience is how long a Tier waits for the engine and the store.
type patience struct {
	look time.Duration // between two looks at a slot while an action on it is not answered
	end  time.Duration // for an action on a slot in which nothing runs
	find time.Duration // for a look-up in the store
	page time.Duration // for reading or storing a page; the time of a restore has its own bound
	part time.Duration // for reading a part of a stream, while an engine waits for it

	leave time.Duration // for an engine to leave a request whose client is gone
	stage time.Duration // for the first step of a request; the engine goes on from there

	saving  time.Duration // before a save, for the pages of another slot to be stored, which a disk may hang
	unknown time.Duration // for actions on slots before a request of which nothing is known

	answer time.Duration // for an answer to a question, which comes between two batches
}

var usualPatience = patience{
	look: time.Second, end: 10 * time.Minute, find: 5 * time.Second, page: time.Minute, part: 10 * time.Second,
	leave: 5 * time.Second, stage: stageMax, saving: time.Second, unknown: 10 * time.Second, answer: 5 * time.Minute,
}

// errHeldBack reports an action that llama-server carries out later.
var errHeldBack = because(CauseBusy, "another request runs in it, and llama-server holds an action back")

// act carries out an action on a busy slot. llama-server holds an action back while a request
// runs in the slot, which can take hours: act returns errHeldBack then, nothing is saved from
// the slot or restored into it until the action was carried out, and then late is called, which
// may close the action's file. An engine that does not answer at all turns the Tier off.
func (t *Tier) act(s *slot, do func() error, late func()) error {
	leave, err := t.enter(s)
	if err != nil {
		return err
	}
	defer leave()
	done := make(chan error, 1)
	go func() { done <- do() }()
	looks, end := time.NewTicker(t.patience.look), time.NewTimer(t.patience.end)
	defer looks.Stop()
	defer end.Stop()
	for held := false; !held; {
		select {
		case err := <-done:
			return err
		case <-looks.C:
			held = t.runs(s)
		case <-end.C:
			t.obstacles.turnOff(telemetry.ObstacleEngine, unanswered)
			held = true
		}
	}
	t.mu.Lock()
	s.acting = true
	t.mu.Unlock()
	go t.awaitAction(s, done, late)
	return errHeldBack
}

// enter notes that an action is waited for, until the caller calls leave.
func (t *Tier) enter(s *slot) (leave func(), err error) {
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

// awaitAction waits for an action that llama-server holds back.
func (t *Tier) awaitAction(s *slot, done <-chan error, late func()) {
	looks := time.NewTicker(t.patience.end)
	defer looks.Stop()
	for over := false; !over; {
		select {
		case <-done:
			over = true
		case <-looks.C:
			if !t.runs(s) {
				t.obstacles.turnOff(telemetry.ObstacleEngine, unanswered)
			}
		}
	}
	late()
	t.mu.Lock()
	defer t.mu.Unlock()
	s.acting = false
}

// runs reports whether llama-server runs a request in a slot, and says so.
func (t *Tier) runs(s *slot) bool {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	slots, err := t.opt.Engine.Slots(ctx)
	return err == nil && s.id < len(slots) && slots[s.id].Running
}

// lookTimeout bounds the time of a look at a slot.
const lookTimeout = 10 * time.Second
