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
	doubts  int // how often answers of unknown length were over
	settled int // doubts before counted
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
	a.mu.Lock()
	doubts := a.doubts
	a.mu.Unlock()
	err = a.ask(ctx, func(ctx context.Context) (err error) {
		least, most, err = a.engine.Generated(ctx)
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counted, a.settled = max(a.counted, least), max(a.settled, doubts)
	return least, most, nil
}

// least returns a number that is at most Engine.Generated. One from before an answer bounds its length, if nobody
// heard it to the end; the earlier it is, the less can be stored.
func (a *asker) least() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.counted
}

// latest returns a number in which all answers of unknown length are counted. Requests wait for that alone.
func (a *asker) latest(ctx context.Context) int {
	a.mu.Lock()
	settled := a.settled == a.doubts
	a.mu.Unlock()
	if !settled {
		_, _, _ = a.generated(ctx) // an earlier number serves as well
	}
	return a.least()
}

// doubt notes that answers of unknown length may be over.
func (a *asker) doubt() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.doubts++
}

// count asks for a number, which nobody waits for, behind an answer that was heard to the end.
func (a *asker) count() {
	if !a.counting.CompareAndSwap(false, true) {
		a.doubt()
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
