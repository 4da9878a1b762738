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
	deaf      atomic.Bool // the engine has not answered
}

func (a *asker) slots(ctx context.Context) ([]Slot, error) {
	var slots []Slot
	err := a.ask(ctx, func(ctx context.Context) (err error) {
		slots, err = a.engine.Slots(ctx)
		return err
	})
	return slots, err
}

func (a *asker) generated(ctx context.Context) (least, most int, err error) {
	err = a.ask(ctx, func(ctx context.Context) (err error) {
		least, most, err = a.engine.Generated(ctx)
		return err
	})
	return least, most, err
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

// counter knows a number that is at most Engine.Generated. That number of tokens bounds the length of
// an answer that nobody heard to the end. It only grows, so an earlier number serves as well: one is
// always known, which is 0 before the engine was asked.
type counter struct {
	asker *asker
	spawn func(func())

	mu    sync.Mutex
	known int
	ended int  // requests that have ended, and those of Unknown that have begun
	fresh bool // known is at most Engine.Generated after the last of ended
}

// least returns a number that is at most Engine.Generated.
func (c *counter) least() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known
}

// count returns a channel that gets at most Engine.Generated before a request. The engine is asked
// if it may have generated tokens since it was asked last.
func (c *counter) count(ctx context.Context) <-chan int {
	counted := make(chan int, 1)
	c.mu.Lock()
	known, fresh := c.known, c.fresh
	c.mu.Unlock()
	if fresh {
		counted <- known
		return counted
	}
	go func() { counted <- c.ask(ctx) }()
	return counted
}

// ask asks for a number that is at most Engine.Generated. Without an answer it is an earlier one.
func (c *counter) ask(ctx context.Context) int {
	least, _, err := c.asker.generated(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.known = max(c.known, least)
	}
	return c.known
}

// generating notes that the engine may have generated tokens since it was asked, and returns how often
// that was noted.
func (c *counter) generating() (ended int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended++
	c.fresh = false
	return c.ended
}

// askAhead asks the engine for the number that count returns, so that the next request need not wait
// for it, unless more than ended is noted meanwhile. The caller has made a slot busy, in which an answer
// has been heard to the end.
func (c *counter) askAhead(ended int) {
	c.spawn(func() {
		ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
		defer cancel()
		c.ask(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.fresh = c.ended == ended
	})
}
