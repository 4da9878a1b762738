package work

import (
	"sync"
	"time"
)

// Once calls a function some time after Start; further calls of Start before the function runs
// do nothing. The zero value is ready.
type Once struct {
	mu      sync.Mutex
	timer   *time.Timer // nil when no call is due
	stopped bool
}

func (c *Once) Start(after time.Duration, fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil || c.stopped {
		return
	}
	c.timer = time.AfterFunc(after, func() {
		c.mu.Lock()
		c.timer = nil
		stopped := c.stopped
		c.mu.Unlock()
		if !stopped {
			fn()
		}
	})
}

// Stop makes Start do nothing. Stop does not wait for a call that has begun.
func (c *Once) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	if c.timer != nil {
		c.timer.Stop()
	}
}
