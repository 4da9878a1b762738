package kvcache

import (
	"context"
	"slices"
	"sync"
)

// idleJob waits for the backend to be idle.
type idleJob struct {
	run  func() error
	done chan error // has room for one
}

// whenIdle runs something that computes a graph of its own: while no batch is computing and
// when the outputs of the last have been read, whose memory the graph may use. That is at
// once where no batch is built, and otherwise between two. The runner's lock is held on entry
// and return, and released while it waits.
//
// The error is run's, or the context's when run was not called.
func (t *TieredCausal) whenIdle(ctx context.Context, lock sync.Locker, run func() error) error {
	t.mu.Lock()
	if len(t.flights) == 0 {
		defer t.mu.Unlock()
		return run()
	}
	job := &idleJob{run: run, done: make(chan error, 1)}
	t.idle = append(t.idle, job)
	t.mu.Unlock()

	lock.Unlock()
	defer lock.Lock()
	select {
	case err := <-job.done:
		return err
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.idle, job); i >= 0 {
		t.idle = slices.Delete(t.idle, i, i+1)
		return ctx.Err()
	}
	return <-job.done
}

// runIdle runs what waits. A batch is done and the next does not compute yet; t.mu is held.
func (t *TieredCausal) runIdle() {
	for _, job := range t.idle {
		job.done <- job.run()
	}
	t.idle = nil
}
