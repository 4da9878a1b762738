package diskstore

import (
	"sync"
	"time"
)

// warmEvery is how often a warm tier that holds pages looks after them.
const warmEvery = 2 * time.Second

// warmClock runs a function every warmEvery while that returns true. There is a
// goroutine only while it runs.
type warmClock struct {
	tick func() bool

	mu      sync.Mutex
	timer   *time.Timer // nil while the clock stands
	stopped bool
	running sync.WaitGroup // a timer that has fired or will fire
}

// start makes the clock go if it stands.
func (c *warmClock) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer == nil && c.tick != nil && !c.stopped {
		c.running.Add(1)
		c.timer = time.AfterFunc(warmEvery, c.run)
	}
}

func (c *warmClock) run() {
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
func (c *warmClock) going() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.timer != nil
}

// stop stops the clock for good and waits for a tick that has begun.
func (c *warmClock) stop() {
	c.mu.Lock()
	c.stopped = true
	if c.timer != nil && c.timer.Stop() {
		c.timer = nil
		c.running.Done()
	}
	c.mu.Unlock()
	c.running.Wait()
}
