package kvcache

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore"
)

const (
	// stagingBytesMax bounds the rows that wait to be written while a batch loop runs.
	// Rows that are about to leave the cache are copied past it: at most one context.
	stagingBytesMax = 256 << 20
	// spareBuffersMax is how many page buffers are kept for reuse: what a batch of 512 tokens
	// completes.
	spareBuffersMax = 2
	// retryAfter is how long the store is left alone after a failed write. Pages stay in
	// the cache meanwhile.
	retryAfter = 30 * time.Second
)

// errSuspended means that the store failed recently and is not tried yet.
var errSuspended = errors.New("page store failed recently")

// writeQueue writes sealed pages behind the batch loop, in the order they were sealed.
type writeQueue struct {
	store Store
	log   *slog.Logger
	now   func() time.Time

	mu      sync.Mutex
	changed sync.Cond   // something in the fields below changed
	jobs    []*writeJob // the first may be being written
	bytes   int64
	spare   [][]byte
	closed  bool
	stopped chan struct{}
	stop    context.CancelFunc

	failedAt time.Time
	failed   int64 // pages lost to a failing store
	quiet    bool  // nothing was logged about that
}

type writeJob struct {
	key  diskstore.Key
	page *diskstore.Page
}

func newWriteQueue(store Store, log *slog.Logger) *writeQueue {
	q := &writeQueue{
		store: store, log: log, now: time.Now,
		stopped: make(chan struct{}),
	}
	q.changed.L = &q.mu
	ctx, cancel := context.WithCancel(context.Background())
	q.stop = cancel
	go q.run(ctx)
	return q
}

// stage returns a buffer for a page's payload, or nil when the queue is full and the rows
// can wait in the cache. The buffer's unused bytes are zero.
func (q *writeQueue) stage(size int, leaving bool) []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.suspendedLocked() {
		return nil
	}
	if !leaving && q.bytes > 0 && q.bytes+int64(size) > stagingBytesMax {
		return nil
	}
	for i, b := range q.spare {
		if len(b) == size {
			q.spare = append(q.spare[:i], q.spare[i+1:]...)
			return b
		}
	}
	return make([]byte, size)
}

// push queues a page whose payload came from stage.
func (q *writeQueue) push(key diskstore.Key, page *diskstore.Page) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.jobs = append(q.jobs, &writeJob{key, page})
	q.bytes += int64(len(page.Payload))
	q.changed.Broadcast()
}

// has reports whether a page is on its way to the store.
func (q *writeQueue) has(key diskstore.Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.ContainsFunc(q.jobs, func(j *writeJob) bool { return j.key == key })
}

// extends reports whether a page on its way to the store holds tokens of a prompt past
// what a slot has of it.
func (q *writeQueue) extends(prompt []int32, have int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.ContainsFunc(q.jobs, func(j *writeJob) bool {
		start, shared := int(j.page.Start), 0
		for shared < len(j.page.Tokens) && start+shared < len(prompt) && j.page.Tokens[shared] == prompt[start+shared] {
			shared++
		}
		return start+shared > have
	})
}

// suspended reports whether a recent failure keeps the queue from trying again.
func (q *writeQueue) suspended() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.suspendedLocked()
}

func (q *writeQueue) suspendedLocked() bool {
	return !q.failedAt.IsZero() && q.now().Sub(q.failedAt) < retryAfter
}

// wait returns when everything pushed so far is written, or with the context's error.
func (q *writeQueue) wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.changed.Broadcast()
	})
	defer stop()

	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.jobs) > 0 {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		q.changed.Wait()
	}
	return nil
}

// close writes what is queued until ctx ends, drops the rest, and stops.
func (q *writeQueue) close(ctx context.Context) error {
	err := q.wait(ctx)
	q.mu.Lock()
	q.closed = true
	q.changed.Broadcast()
	q.mu.Unlock()
	q.stop()
	<-q.stopped
	return err
}

func (q *writeQueue) run(ctx context.Context) {
	defer close(q.stopped)
	for {
		job := q.next()
		if job == nil {
			return
		}
		err := errSuspended
		if !q.suspended() {
			err = q.store.Put(ctx, job.page)
		}
		q.finish(job, err)
	}
}

func (q *writeQueue) next() *writeJob {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.jobs) == 0 && !q.closed {
		q.changed.Wait()
	}
	if q.closed {
		return nil
	}
	return q.jobs[0]
}

func (q *writeQueue) finish(job *writeJob, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.jobs = q.jobs[1:]
	q.bytes -= int64(len(job.page.Payload))
	if len(q.spare) < spareBuffersMax {
		q.spare = append(q.spare, job.page.Payload)
	}
	switch {
	case err == nil:
		if !q.failedAt.IsZero() {
			if !q.quiet {
				q.log.Info("kv tier: storing pages again", "lost", q.failed)
			}
			q.failedAt, q.failed, q.quiet = time.Time{}, 0, false
		}
	case errors.Is(err, errSuspended):
		q.failed++
	default:
		// The store itself tells when its daily limit is reached, and when not any more.
		untold := q.quiet || q.failedAt.IsZero()
		q.quiet = untold && errors.Is(err, diskstore.ErrWriteCap)
		if untold && !q.quiet {
			q.log.Warn("kv tier: could not store a page; requests go on, prompts are computed again where pages are missing",
				"error", err, "retry_in", retryAfter)
		}
		q.failedAt = q.now()
		q.failed++
	}
	q.changed.Broadcast()
}
