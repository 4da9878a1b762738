package kvcache

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/steady"
)

// queuedBytes is the default of Options.QueuedBytes.
const queuedBytes = 1 << 30

const (
	// spareBuffersMax bounds the page buffers kept for reuse: a batch of 512 tokens completes as many.
	spareBuffersMax = 2
	// yieldMax bounds the time for which restores keep the queue from writing.
	yieldMax = 10 * time.Second
	// stopMax bounds the wait for a write that was told to end.
	stopMax = time.Second
)

// pageWriter is the part of a [Store] that takes pages.
type pageWriter interface {
	Put(ctx context.Context, page *pagefile.Page) error
	PutIfRoom(ctx context.Context, page *pagefile.Page) error
}

// writeQueue writes sealed pages behind the batch loop, in the order they were sealed. A page stays
// queued until it is written or given up: see retry.go. While restores read, the queue writes nothing,
// because requests wait for restores and not for the queue. There are three exceptions: the queue has
// no room for more, a caller waits for queued pages, or restores have been reading for yieldMax.
type writeQueue struct {
	store pageWriter
	now   func() time.Time
	wrote func(job *writeJob, err error) // called after each attempt to write a job, while the job is still queued
	wake  func()                         // queues pages that are still in the cache; called without q.mu
	after func(time.Duration, func()) (stop func() bool)

	mu      sync.Mutex
	changed sync.Cond // a field below changed
	backlog
	refused bool  // a page found no room since the last page was written
	crowded bool  // a page found no room since the last call of refusals
	tried   int64 // attempts to write a page that have ended
	before  int64 // tried when the first page of crowded found no room
	waiting int   // callers inside waitFor
	closed  bool
	stopped chan struct{}
	stop    context.CancelFunc
	stopIn  time.Duration // stopMax, except in tests

	reading  int       // restores that read
	yielding time.Time // start of the present reading
	resume   *time.Timer

	copier copier

	outage outage
	short  bool           // a page was refused, for any reason, since the last call of wake
	tails  time.Time      // when a tail in the cache is due; zero if none waits
	waking func() bool    // stops the timer; nil without a timer
	wakeAt time.Time      // time at which the timer fires
	wakes  sync.WaitGroup // running timers and calls of wake
}

type writeJob struct {
	key    pagefile.Key
	page   *pagefile.Page
	ifRoom bool // stored only where the store has room

	tries int // failed attempts
	pause time.Duration
	due   time.Time // earliest next attempt

	copy *copyOut // nil when the payload is complete
	lost bool     // the page was found unreadable since the writer took it
}

func (j *writeJob) bytes() int64 { return int64(len(j.page.Payload)) }

// failed puts a page off.
func (j *writeJob) failed(now time.Time) {
	j.tries++
	j.pause = min(max(2*j.pause, retryFirst), retryIdle)
	j.due = now.Add(j.pause)
}

func newWriteQueue(store pageWriter, most int64, wrote func(*writeJob, error), wake func()) *writeQueue {
	q := &writeQueue{
		store: store, now: time.Now, wrote: wrote, wake: wake, backlog: backlog{most: most}, stopIn: stopMax,
		after:   func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop },
		stopped: make(chan struct{}),
	}
	q.changed.L = &q.mu
	ctx, cancel := context.WithCancel(context.Background())
	q.stop = cancel
	go q.run(ctx)
	return q
}

// stage returns a buffer of size bytes for a page's payload, with padding bytes zero. stage
// returns nil when the queue has no room, and when the store fails and the rows can wait in
// the cache. leaving: the rows are about to leave the cache and cannot wait.
func (q *writeQueue) stage(size int, leaving bool) []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.outage.sooner()
	switch {
	case q.closed:
		return nil
	case leaving:
		if !q.makeRoom(int64(size)) {
			q.refused = true
			q.changed.Broadcast()
			return nil
		}
	case q.outage.suspends(q.now()):
		q.short = true
		q.armLocked()
		return nil
	default:
		queued := q.bytes - q.failedBytes()
		if queued > 0 && queued+int64(size) > q.staging() || !q.makeRoom(int64(size)) {
			if !q.crowded {
				q.before = q.tried
			}
			q.refused, q.crowded, q.short = true, true, true
			q.changed.Broadcast()
			return nil
		}
	}
	return q.buffer(size)
}

// push queues a page whose payload came from stage. A page with ifRoom is stored only where the
// store has room. rows are the page's rows that are still to be copied, or nil.
func (q *writeQueue) push(key pagefile.Key, page *pagefile.Page, ifRoom bool, rows *copyOut) {
	q.mu.Lock()
	defer q.mu.Unlock()
	job := &writeJob{key: key, page: page, ifRoom: ifRoom, copy: rows}
	q.jobs = append(q.jobs, job)
	q.bytes += job.bytes()
	q.armLocked()
	q.changed.Broadcast()
}

// has reports whether a page is queued.
func (q *writeQueue) has(key pagefile.Key) bool {
	return q.any(func(j *writeJob) bool { return j.key == key })
}

// lost notes that a page is gone from the store, perhaps one whose writing has not ended here yet.
func (q *writeQueue) lost(key pagefile.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.writing != nil && q.writing.key == key {
		q.writing.lost = true
	}
}

// keys are the keys of all queued pages.
func (q *writeQueue) keys() map[pagefile.Key]bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	keys := make(map[pagefile.Key]bool, len(q.jobs))
	for _, j := range q.jobs {
		keys[j.key] = true
	}
	return keys
}

// any reports whether a wanted page is queued.
func (q *writeQueue) any(wanted func(*writeJob) bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.ContainsFunc(q.jobs, wanted)
}

// wait returns when every queued page is written, given up or left for later because writing
// failed. The error is the context's.
func (q *writeQueue) wait(ctx context.Context) error {
	return q.waitFor(ctx, func(*writeJob) bool { return true })
}

// waitFor waits as wait does, for the wanted pages only.
func (q *writeQueue) waitFor(ctx context.Context, wanted func(*writeJob) bool) error {
	stop := context.AfterFunc(ctx, q.lookAgain)
	defer stop()

	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting++
	defer func() { q.waiting-- }()
	q.changed.Broadcast()
	for slices.ContainsFunc(q.jobs, func(j *writeJob) bool { return (j.copy != nil || q.dueLocked(j)) && wanted(j) }) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		q.changed.Wait()
	}
	return nil
}

// refusals reports whether a page that may stay in the cache found no room since the last
// call, and the number of attempts to write pages that had ended by then. A page that took the
// room may have been written since.
func (q *writeQueue) refusals() (refused bool, attempts int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	refused, q.crowded = q.crowded, false
	return refused, q.before
}

// lookAgain wakes all waiters on q.changed.
func (q *writeQueue) lookAgain() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.changed.Broadcast()
}

// close writes queued pages until ctx ends, drops the rest, and stops. The wait for a
// running write is bounded by stopIn.
func (q *writeQueue) close(ctx context.Context) error {
	err := q.wait(ctx)
	q.mu.Lock()
	q.closed = true
	if left := len(q.jobs); err == nil && left > 0 {
		err = fmt.Errorf("writing %d pages failed", left)
	}
	q.disarmLocked()
	q.changed.Broadcast()
	q.mu.Unlock()
	q.stop()
	steady.Ended(q.stopped, q.stopIn)
	q.wakes.Wait()
	return err
}

func (q *writeQueue) run(ctx context.Context) {
	defer close(q.stopped)
	for job := q.next(nil, nil); job != nil; {
		put := q.store.Put
		if job.ifRoom {
			put = q.store.PutIfRoom
		}
		err := put(ctx, job.page)
		q.wrote(job, err)
		job = q.next(job, err)
	}
}

// next handles the result of an attempt to write a page, if there was one, and waits for a page
// that is due, and for its rows. next returns nil when the queue is closed. In one step: who
// waits for the last page finds the writer at rest.
func (q *writeQueue) next(done *writeJob, err error) *writeJob {
	q.mu.Lock()
	defer q.mu.Unlock()
	if done != nil {
		q.finishLocked(done, err)
	}
	for !q.closed {
		i := slices.IndexFunc(q.jobs, q.dueLocked)
		if i >= 0 && q.jobs[i].copy == nil && !q.yieldsLocked() {
			q.writing, q.jobs[i].lost = q.jobs[i], false
			return q.writing
		}
		q.changed.Wait()
	}
	return nil
}

// yield is called with 1 before a restore reads and with -1 after.
func (q *writeQueue) yield(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.reading += n; q.reading > 0 && q.yielding.IsZero() {
		q.yielding = q.now()
		q.resume = time.AfterFunc(yieldMax, q.lookAgain)
	} else if q.reading == 0 {
		q.yielding = time.Time{}
		q.resume.Stop()
		q.changed.Broadcast()
	}
}

// yieldsLocked reports whether writing waits for restores.
func (q *writeQueue) yieldsLocked() bool {
	full := q.refused || q.bytes >= q.staging()
	return q.reading > 0 && !full && q.waiting == 0 && q.now().Sub(q.yielding) < yieldMax
}

// finishLocked handles the result of an attempt to write a page.
func (q *writeQueue) finishLocked(job *writeJob, err error) {
	q.writing, q.refused = nil, false
	q.tried++
	switch {
	case err == nil && job.lost:
		q.recoveredLocked() // the page is written again
	case err == nil:
		q.remove(job)
		q.recoveredLocked()
	case givesUp(err):
		q.drop(job)
	default:
		q.failLocked(job, err)
	}
	q.armLocked()
	q.changed.Broadcast()
}

// suspended reports whether the store fails and the pause is not over.
func (q *writeQueue) suspended() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.outage.suspends(q.now())
}

// dueLocked reports whether a page is being written or may be written now.
func (q *writeQueue) dueLocked(job *writeJob) bool {
	return job == q.writing || !q.outage.suspends(q.now()) && !q.now().Before(job.due)
}

// retry ends all pauses, so that every queued page is tried at once.
func (q *writeQueue) retry() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.retryLocked()
}

func (q *writeQueue) retryLocked() {
	q.outage.until = time.Time{}
	for _, job := range q.jobs {
		job.due = time.Time{}
	}
	q.changed.Broadcast()
}

// recoveredLocked notes that a page was written.
func (q *writeQueue) recoveredLocked() {
	if q.outage.pause > 0 {
		q.retryLocked()
		q.short = true // stage refused pages during the outage
	}
	q.outage = outage{}
}

// failLocked puts a page off, or all pages when the store fails.
func (q *writeQueue) failLocked(job *writeJob, err error) {
	job.failed(q.now())
	q.outage.failed(q.now(), job.tries == 1, storeFails(err))
	i := slices.Index(q.jobs, job)
	q.jobs = append(slices.Delete(q.jobs, i, i+1), job) // another page is tried next
	if job.tries >= triesMax {
		q.drop(job)
	}
	for q.failedBytes() > q.staging() {
		q.drop(q.worst())
	}
}

// takeDropped returns the pages that were given up since the last call.
func (q *writeQueue) takeDropped() []pagefile.Key {
	q.mu.Lock()
	defer q.mu.Unlock()
	dropped := q.dropped
	q.dropped = nil
	return dropped
}

// content describes the queue's pages and memory.
func (q *writeQueue) content() queueHeld {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.held()
}
