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
	// retryFirst is how long the store is left alone after a failed write, and twice as long
	// after each that follows, up to retryAfter. Pages stay in the cache meanwhile.
	retryFirst = time.Second
	retryAfter = 30 * time.Second
	// retryIdle is the same where no request comes: looking whether a store takes pages again
	// costs a page that is copied from the device and perhaps written in part.
	retryIdle = 30 * time.Minute
	// lostMax bounds how many pages are known by name not to have been written.
	lostMax = 4096
	// yieldMax bounds for how long restores keep the queue from writing.
	yieldMax = 10 * time.Second
)

// errSuspended means that the store failed recently and is not tried yet.
var errSuspended = errors.New("page store failed recently")

// writeQueue writes sealed pages behind the batch loop, in the order they were sealed. What
// failed before comes last, so that a page which cannot be written keeps no other from it.
// While restores read it writes no page, because a request waits for them and none for it:
// except when there is no room for more, when somebody waits for what is queued, or when
// that has gone on for yieldMax.
type writeQueue struct {
	store Store
	log   *slog.Logger
	now   func() time.Time
	wrote func(job *writeJob, err error) // what became of a job that is still queued
	wake  func()                         // queues what is still in the cache; q.mu is not held
	after func(time.Duration, func()) (stop func() bool)

	mu      sync.Mutex
	changed sync.Cond   // something in the fields below changed
	jobs    []*writeJob // the first may be being written
	bytes   int64
	spare   [][]byte
	refused bool // a page was, for want of room, since one was written
	waiting int  // callers of wait
	closed  bool
	stopped chan struct{}
	stop    context.CancelFunc

	reading  int       // restores
	yielding time.Time // since when there have been any
	resume   *time.Timer

	failing bool          // since the last page was written one was not
	pause   time.Duration // for which the store is left alone,
	until   time.Time     // which it is until then
	idle    time.Duration // before wake is called, at least
	failed  int64         // writes since it began to fail
	quiet   bool          // nothing was logged about that
	told    time.Time     // when something was, last

	short  bool           // a page was refused or not written since wake was called
	waking func() bool    // keeps wake from being called; nil: nothing is going to call it
	wakes  sync.WaitGroup // calls of wake, and what is going to call it

	lost   map[diskstore.Key]int // pages that were not written or are gone, and how often that was tried
	losses int                   // how many there were, ever
	forgot int                   // losses up to this one may be missing in lost
}

type writeJob struct {
	key  diskstore.Key
	page *diskstore.Page
}

func newWriteQueue(store Store, log *slog.Logger, wrote func(*writeJob, error), wake func()) *writeQueue {
	q := &writeQueue{
		store: store, log: log, now: time.Now, wrote: wrote, wake: wake,
		after:   func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop },
		stopped: make(chan struct{}), lost: make(map[diskstore.Key]int),
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
	if q.closed {
		return nil
	}
	if q.suspendedLocked() {
		q.short = true
		return nil
	}
	if !leaving && q.bytes > 0 && q.bytes+int64(size) > stagingBytesMax {
		q.refused, q.short = true, true
		q.changed.Broadcast()
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
	return q.now().Before(q.until)
}

// retry lets the next page be written however recent the last failure is.
func (q *writeQueue) retry() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.until = time.Time{}
}

// doubts reports whether the last page that was tried could not be written.
func (q *writeQueue) doubts() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.failing
}

// leave notes that something is left in the cache that wake is to queue.
func (q *writeQueue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.short = true
}

// firstLost is the place of the first of some pages that was queued and not written. since
// is what it returned as losses before: when nothing was lost after that, it is len(keys).
// told is false when nobody knows any more which were lost.
func (q *writeQueue) firstLost(keys []diskstore.Key, since int) (first, losses int, told bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case since == q.losses:
		return len(keys), since, true
	case since < q.forgot:
		return 0, q.losses, false
	}
	for i, key := range keys {
		if _, ok := q.lost[key]; ok {
			return i, q.losses, true
		}
	}
	return len(keys), q.losses, true
}

// tries is how often writing a page was tried in vain; lost is true when it was queued and
// not written, or is gone.
func (q *writeQueue) tries(key diskstore.Key) (n int, lost bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, lost = q.lost[key]
	return n, lost
}

// gone notes that a page is stored no more. It reports whether there was room for that.
func (q *writeQueue) gone(key diskstore.Key) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, known := q.lost[key]; !known && len(q.lost) >= lostMax {
		return false
	}
	q.lost[key] += 0
	return true
}

// loseLocked notes that a page was not written, and whether that was tried.
func (q *writeQueue) loseLocked(key diskstore.Key, tried bool) {
	if _, known := q.lost[key]; !known && len(q.lost) >= lostMax {
		clear(q.lost)
		q.forgot = q.losses
	}
	q.losses++
	if tried {
		q.lost[key]++
	} else {
		q.lost[key] += 0
	}
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
	q.waiting++
	defer func() { q.waiting-- }()
	q.changed.Broadcast()
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
	if q.waking != nil && q.waking() {
		q.wakes.Done()
	}
	q.changed.Broadcast()
	q.mu.Unlock()
	q.stop()
	<-q.stopped
	q.wakes.Wait()
	return err
}

// wakeLaterLocked arranges for wake to be called as soon as the store may be tried again, when
// nothing is queued and something has been refused or not written.
func (q *writeQueue) wakeLaterLocked() {
	if len(q.jobs) > 0 || !q.short || q.closed || q.waking != nil {
		return
	}
	q.wakes.Add(1)
	q.waking = q.after(max(q.idle, q.until.Sub(q.now())), q.wakeNow)
}

// wakeNow calls wake, or arranges for that when the store has failed once more meanwhile.
func (q *writeQueue) wakeNow() {
	defer q.wakes.Done()
	q.mu.Lock()
	q.waking = nil
	now := !q.suspendedLocked() && !q.closed
	if now {
		q.short = false
		if q.failing {
			q.idle = min(max(2*q.idle, 2*retryFirst), retryIdle)
		}
	} else {
		q.short = true
		q.wakeLaterLocked()
	}
	q.mu.Unlock()
	if now {
		q.wake()
	}
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
		q.wrote(job, err)
		q.finish(job, err)
	}
}

func (q *writeQueue) next() *writeJob {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.closed && (len(q.jobs) == 0 || q.yieldsLocked()) {
		q.changed.Wait()
	}
	if q.closed {
		return nil
	}
	next := 0
	for i, job := range q.jobs {
		if q.lost[job.key] < q.lost[q.jobs[next].key] {
			next = i
		}
	}
	job := q.jobs[next]
	copy(q.jobs[1:next+1], q.jobs[:next])
	q.jobs[0] = job
	return job
}

// yield is called with 1 before a restore reads and with -1 after.
func (q *writeQueue) yield(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.reading += n; q.reading > 0 && q.yielding.IsZero() {
		q.yielding = q.now()
		q.resume = time.AfterFunc(yieldMax, func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.changed.Broadcast()
		})
	} else if q.reading == 0 {
		q.yielding = time.Time{}
		q.resume.Stop()
		q.changed.Broadcast()
	}
}

// yieldsLocked reports whether the next page is left for later.
func (q *writeQueue) yieldsLocked() bool {
	full := q.refused || q.bytes >= stagingBytesMax
	return q.reading > 0 && !full && q.waiting == 0 && q.now().Sub(q.yielding) < yieldMax
}

func (q *writeQueue) finish(job *writeJob, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.jobs = q.jobs[1:]
	q.refused = false
	q.bytes -= int64(len(job.page.Payload))
	if len(q.spare) < spareBuffersMax {
		q.spare = append(q.spare, job.page.Payload)
	}
	switch {
	case err == nil:
		delete(q.lost, job.key)
		if q.failing && !q.quiet {
			q.log.Info("kv tier: storing pages again", "failed", q.failed)
		}
		if q.idle > 0 && q.waking != nil && q.waking() { // which was not to be for long
			q.waking = nil
			q.wakes.Done()
		}
		q.failing, q.pause, q.until, q.idle, q.failed, q.quiet = false, 0, time.Time{}, 0, 0, false
	case errors.Is(err, errSuspended):
		q.failed++
		q.loseLocked(job.key, false)
	default:
		q.failLocked(err)
		q.loseLocked(job.key, true)
	}
	q.short = q.short || err != nil
	q.wakeLaterLocked()
	q.changed.Broadcast()
}

// failLocked leaves the store alone for a while after an error of its own.
func (q *writeQueue) failLocked(err error) {
	q.pause = min(max(2*q.pause, retryFirst), retryAfter)
	// The store itself tells when its daily limit is reached, and when not any more.
	untold := q.quiet || !q.failing
	q.quiet = untold && (errors.Is(err, diskstore.ErrWriteCap) || q.now().Sub(q.told) < retryAfter)
	if untold && !q.quiet {
		q.told = q.now()
		q.log.Warn("kv tier: could not store a page; requests go on, pages are tried again as long as they are in memory",
			"error", err, "retry_in", q.pause)
	}
	q.failing, q.until = true, q.now().Add(q.pause)
	q.failed++
}
