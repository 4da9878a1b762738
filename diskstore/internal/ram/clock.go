package ram

import (
	"sync"
	"time"
)

// tickEvery is the interval at which a tier with pages calls Tick.
const tickEvery = 2 * time.Second

// clock calls a function every tickEvery until the function returns false. A goroutine exists
// only during a call.
type clock struct {
	tick func() bool

	mu      sync.Mutex
	timer   *time.Timer // nil while the clock is stopped
	stopped bool
	running sync.WaitGroup // timers that have fired or will fire
}

// start starts a stopped clock.
func (c *clock) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer == nil && c.tick != nil && !c.stopped {
		c.running.Add(1)
		c.timer = time.AfterFunc(tickEvery, c.run)
	}
}

func (c *clock) run() {
	defer c.running.Done()
	again := c.tick()
	c.mu.Lock()
	c.timer = nil
	c.mu.Unlock()
	if again {
		c.start()
	}
}

// going reports whether the clock runs.
func (c *clock) going() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.timer != nil
}

// stop stops the clock for good and waits for a call that has begun.
func (c *clock) stop() {
	c.mu.Lock()
	c.stopped = true
	if c.timer != nil && c.timer.Stop() {
		c.timer = nil
		c.running.Done()
	}
	c.mu.Unlock()
	c.running.Wait()
}
