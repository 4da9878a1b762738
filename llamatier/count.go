package llamatier

import (
	"context"
	"sync"
)

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
