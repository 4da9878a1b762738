package work

import (
	"context"
	"errors"
	"sync"
	"time"
)

// maxQueuedJobs bounds a background queue. Further jobs are dropped: every job is an
// improvement for which the next access submits a job again.
const maxQueuedJobs = 1024

// Queue runs jobs one after another in a goroutine that exists only while there are jobs.
type Queue struct {
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

func NewQueue() *Queue {
	ctx, cancel := context.WithCancel(context.Background())
	q := &Queue{ctx: ctx, cancel: cancel, queued: make(map[any]bool), idle: make(chan struct{})}
	close(q.idle)
	return q
}

// Submit queues run unless a job of the same key waits already, the queue is full, or the
// store is closing, and reports whether it did. Submit never waits.
func (q *Queue) Submit(key any, run func(ctx context.Context)) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.queued[key] || len(q.jobs) >= maxQueuedJobs {
		return false
	}
	q.queued[key] = true
	q.jobs = append(q.jobs, job{key, run})
	if !q.running {
		q.running = true
		q.idle = make(chan struct{})
		go q.loop()
	}
	return true
}

func (q *Queue) loop() {
	for {
		q.mu.Lock()
		if len(q.jobs) == 0 || q.closed {
			q.running = false
			close(q.idle)
			q.mu.Unlock()
			return
		}
		next := q.jobs[0]
		q.jobs = q.jobs[1:]
		delete(q.queued, next.key)
		q.mu.Unlock()
		next.run(q.ctx)
	}
}

// Done returns a channel that is closed while there are no jobs.
func (q *Queue) Done() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.idle
}

// Wait returns when there are no jobs, or with ctx's error.
func (q *Queue) Wait(ctx context.Context) error {
	select {
	case <-q.Done():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close drops queued jobs, cancels the running one and waits for it, at most for patience.
func (q *Queue) Close(patience time.Duration) error {
	q.mu.Lock()
	q.closed = true
	q.jobs = nil
	q.mu.Unlock()
	q.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if q.Wait(ctx) != nil {
		return errors.New("background work did not stop in time")
	}
	return nil
}

// Once calls a function some time after Start; further calls of Start before the function runs
// do nothing. The function may call Start. The zero value is ready.
type Once struct {
	mu      sync.Mutex
	timer   *time.Timer // nil when no call is due
	stopped bool
	running sync.WaitGroup // timers that have fired or will fire
}

func (c *Once) Start(after time.Duration, fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil || c.stopped {
		return
	}
	c.running.Add(1)
	c.timer = time.AfterFunc(after, func() {
		defer c.running.Done()
		c.mu.Lock()
		c.timer = nil
		stopped := c.stopped
		c.mu.Unlock()
		if !stopped {
			fn()
		}
	})
}

// Due reports whether a call is due and has not begun.
func (c *Once) Due() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.timer != nil
}

// Stop makes Start do nothing, and waits for a call that has begun.
func (c *Once) Stop() {
	c.mu.Lock()
	c.stopped = true
	if c.timer != nil && c.timer.Stop() {
		c.timer = nil
		c.running.Done()
	}
	c.mu.Unlock()
	c.running.Wait()
}
