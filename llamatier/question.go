package llamatier

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// asker asks the engine about its slots and its answers, and waits for an answer at most patience.answer. An
// engine that does not answer is an obstacle, and is asked nothing any more.
type asker struct {
	engine    *Engine
	patience  *patience
	obstacles *obstacles
	spawn     func(func()) // for questions that nobody waits for
	deaf      atomic.Bool  // the engine has not answered
	counting  atomic.Bool  // count is asking

	mu      sync.Mutex
	counted int // at most Engine.Generated
}

func (a *asker) slots(ctx context.Context) ([]Slot, error) {
	var slots []Slot
	err := a.ask(ctx, func(ctx context.Context) (err error) {
		slots, err = a.engine.Slots(ctx)
		return err
	})
	return slots, err
}

// generated asks for Engine.Generated.
func (a *asker) generated(ctx context.Context) (least, most int, err error) {
	err = a.ask(ctx, func(ctx context.Context) (err error) {
		least, most, err = a.engine.Generated(ctx)
		return err
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counted = max(a.counted, least)
	return least, most, err
}

// least returns a number that is at most Engine.Generated. That number bounds the length of an answer that
// nobody heard to the end. It only grows, so an earlier one serves as well, and no request waits for one: count
// asks when an answer is over. It is 0 before.
func (a *asker) least() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.counted
}

// count asks for a later number, unless that is on its way.
func (a *asker) count() {
	if !a.counting.CompareAndSwap(false, true) {
		return
	}
	a.spawn(func() {
		defer a.counting.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
		defer cancel()
		_, _, _ = a.generated(ctx)
	})
}

func (a *asker) ask(ctx context.Context, question func(ctx context.Context) error) error {
	if a.deaf.Load() {
		return errDeaf
	}
	limited, cancel := context.WithTimeout(ctx, a.patience.answer)
	defer cancel()
	err := question(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		a.deaf.Store(true)
		a.obstacles.turnOff(telemetry.ObstacleEngine, unanswered)
	}
	return err
}

// leaveEvery is the time between two looks at an engine that has not left a request.
const leaveEvery = 20 * time.Millisecond

// left waits until the engine runs no request in a slot whose last client may be gone, at most
// patience.leave, and returns the engine's slots.
func (a *asker) left(ctx context.Context, s *slot) ([]Slot, error) {
	late := time.After(a.patience.leave)
	for {
		slots, err := a.slots(ctx)
		if err != nil || s.id >= len(slots) || !slots[s.id].Running || !s.unheard() {
			return slots, err
		}
		select {
		case <-late:
			return slots, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(leaveEvery):
		}
	}
}

// idle returns the engine's view of a slot, and an error while a request runs in it.
func (a *asker) idle(ctx context.Context, id int) (Slot, error) {
	slots, err := a.slots(ctx)
	switch {
	case err != nil:
		return Slot{}, because(CauseUnanswered, "look at it: %w", err)
	case id >= len(slots):
		return Slot{}, because(CauseUnanswered, "llama-server has %d slots", len(slots))
	case slots[id].Running:
		return Slot{}, because(CauseBusy, "another request runs in it")
	}
	return slots[id], nil
}
