package guard

import (
	"fmt"
	"slices"
	"sync"

	"github.com/kvtier/kvtier/diskstore/tier"
)

// maxEnds is the number of files and locks that may wait to be released; with as many, no
// further ones are opened.
const maxEnds = 64

// ends are functions that release files and locks. They wait for a worker, and nobody waits for them.
type ends struct {
	workers chan struct{}
	panics  *panics

	mu      sync.Mutex
	waiting []func()
	running bool // giveUp runs
}

// add runs fn in a worker when one is free. One goroutine waits for a worker, for any number of calls.
func (e *ends) add(fn func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting = append(e.waiting, fn)
	if !e.running {
		e.running = true
		go e.giveUp()
	}
}

// giveUp runs each waiting function in a worker, until none is left.
func (e *ends) giveUp() {
	for fn := e.next(); fn != nil; fn = e.next() {
		e.workers <- struct{}{}
		go func() {
			e.run(fn)
			<-e.workers
		}()
	}
}

// run runs fn and recovers from its panic.
func (e *ends) run(fn func()) {
	_, _ = try(e.panics, func() (struct{}, error) {
		fn()
		return struct{}{}, nil
	})
}

// next returns nil at the end of giveUp.
func (e *ends) next() (fn func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	fn = e.takeLocked()
	e.running = fn != nil
	return fn
}

func (e *ends) take() (fn func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.takeLocked()
}

func (e *ends) takeLocked() (fn func()) {
	if len(e.waiting) > 0 {
		fn = e.waiting[0]
		e.waiting = slices.Delete(e.waiting, 0, 1)
	}
	return fn
}

func (e *ends) crowded() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.waiting); n >= maxEnds {
		return fmt.Errorf("%d files wait until they can be closed: %w", n, tier.ErrTierTimeout)
	}
	return nil
}
