package diskstore

import (
	"context"
	"errors"
	"sync"
	"time"
)

// maxQueuedJobs bounds a background queue. What does not fit is dropped: every
// job is an improvement that the next access asks for again.
const maxQueuedJobs = 1024

// background runs jobs one after another in a goroutine that exists only while
// there are jobs.
type background struct {
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	jobs    []job
	queued  map[any]bool // keys of jobs that have not begun
	running bool         // the goroutine exists
	closed  bool
	idle    chan struct{} // closed while the goroutine does not exist
}

type job struct {
	key any
	run func(ctx context.Context)
}

func newBackground() *background {
	ctx, cancel := context.WithCancel(context.Background())
	b := &background{ctx: ctx, cancel: cancel, queued: make(map[any]bool), idle: make(chan struct{})}
	close(b.idle)
	return b
}

// submit queues run unless a job of the same key waits already, the queue is
// full, or the store is closing. It never waits.
func (b *background) submit(key any, run func(ctx context.Context)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.queued[key] || len(b.jobs) >= maxQueuedJobs {
		return
	}
	b.queued[key] = true
	b.jobs = append(b.jobs, job{key, run})
	if !b.running {
		b.running = true
		b.idle = make(chan struct{})
		go b.loop()
	}
}

func (b *background) loop() {
	for {
		b.mu.Lock()
		if len(b.jobs) == 0 || b.closed {
			b.running = false
			close(b.idle)
			b.mu.Unlock()
			return
		}
		next := b.jobs[0]
		b.jobs = b.jobs[1:]
		delete(b.queued, next.key)
		b.mu.Unlock()
		next.run(b.ctx)
	}
}

// done returns a channel that is closed once there are no jobs.
func (b *background) done() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.idle
}

// wait returns when there are no jobs, or with ctx's error.
func (b *background) wait(ctx context.Context) error {
	select {
	case <-b.done():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// close drops queued jobs, cancels the running one and waits for it.
func (b *background) close(patience time.Duration) error {
	b.mu.Lock()
	b.closed = true
	b.jobs = nil
	b.mu.Unlock()
	b.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if b.wait(ctx) != nil {
		return errors.New("background work did not stop in time")
	}
	return nil
}
