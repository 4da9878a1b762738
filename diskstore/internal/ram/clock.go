package ram

import (
	"sync"
	"time"
)

// tickEvery is how often a tier that holds pages looks after them.
const tickEvery = 2 * time.Second

// clock runs a function every tickEvery while that returns true. There is a
// goroutine only while it runs.
type clock struct {
	tick func() bool

	mu      sync.Mutex
	timer   *time.Timer // nil while the clock stands
	stopped bool
	running sync.WaitGroup // a timer that has fired or will fire
}

// start makes the clock go if it stands.
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

// going reports whether the clock goes.
func (c *clock) going() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.timer != nil
}

// stop stops the clock for good and waits for a tick that has begun.
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
