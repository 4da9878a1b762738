package kvcache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

const (
	// stagingBytesMax bounds the rows that wait to be written while a batch loop runs, and by
	// itself those whose writing failed.
	stagingBytesMax = 256 << 20
	// leavingBytesMax bounds all that is queued. Rows that are about to leave the cache are
	// copied up to it.
	leavingBytesMax = 4 * stagingBytesMax
	// spareBuffersMax is how many page buffers are kept for reuse: what a batch of 512 tokens
	// completes.
	spareBuffersMax = 2
	// yieldMax bounds for how long restores keep the queue from writing.
	yieldMax = 10 * time.Second
	// stopMax bounds how long a write that was told to end is waited for.
	stopMax = time.Second
)

// writeQueue writes sealed pages behind the batch loop, in the order they were sealed. A page
// stays until it is written or given up: see retry.go. While restores read, the queue writes
// nothing, because a request waits for them and none for it: except when there is no room for
// more, when somebody waits for what is queued, or when that has gone on for yieldMax.
type writeQueue struct {
	store Store
	log   *slog.Logger
	now   func() time.Time
	wrote func(job *writeJob, err error) // what became of a try to write a job, which is still queued
	wake  func()                         // queues what is still in the cache; q.mu is not held
	after func(time.Duration, func()) (stop func() bool)

	mu      sync.Mutex
	changed sync.Cond // something in the fields below changed
	jobs    []*writeJob
	writing *writeJob // one of them
	bytes   int64     // of jobs
	most    int64     // leavingBytesMax, but in tests
	spare   [][]byte
	refused bool // a page was, for want of room, since one was written
	waiting int  // callers of wait
	closed  bool
	stopped chan struct{}
	stop    context.CancelFunc
	stopIn  time.Duration // stopMax, but in tests

	reading  int       // restores
	yielding time.Time // since when there have been any
	resume   *time.Timer

	dropped []pagefile.Key // given up since takeDropped
	outage  outage
	told    time.Time      // when something was logged about pages that failed, last
	short   bool           // a page found no room, or none was taken, since wake was called
	waking  func() bool    // stops the timer; nil: there is none
	wakeAt  time.Time      // when it fires
	wakes   sync.WaitGroup // timers, and calls of wake
}

type writeJob struct {
	key  pagefile.Key
	page *pagefile.Page
	meek bool // is stored only where there is room

	tries int // that failed
	pause time.Duration
	due   time.Time // not tried before
}

func (j *writeJob) bytes() int64 { return int64(len(j.page.Payload)) }

func newWriteQueue(store Store, log *slog.Logger, wrote func(*writeJob, error), wake func()) *writeQueue {
	q := &writeQueue{
		store: store, log: log, now: time.Now, wrote: wrote, wake: wake, most: leavingBytesMax, stopIn: stopMax,
		after:   func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop },
		stopped: make(chan struct{}),
	}
	q.changed.L = &q.mu
	ctx, cancel := context.WithCancel(context.Background())
	q.stop = cancel
	go q.run(ctx)
	return q
}

// stage returns a buffer for a page's payload, or nil when there is no room, or when the store
// fails and the rows can wait in the cache: they cannot when they are leaving it. The
// buffer's unused bytes are zero.
func (q *writeQueue) stage(size int, leaving bool) []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.soonerLocked()
	switch {
	case q.closed:
		return nil
	case leaving:
		if !q.makeRoomLocked(int64(size)) {
			return nil
		}
	case q.suspendedLocked():
		q.short = true
		q.armLocked()
		return nil
	default:
		queued := q.bytes - q.failedBytesLocked()
		if queued > 0 && queued+int64(size) > stagingBytesMax || q.bytes > 0 && q.bytes+int64(size) > q.most {
			q.refused, q.short = true, true
			q.changed.Broadcast()
			return nil
		}
	}
	for i, b := range q.spare {
		if len(b) == size {
			q.spare = append(q.spare[:i], q.spare[i+1:]...)
			return b
		}
	}
	return make([]byte, size)
}

// push queues a page whose payload came from stage. One that is meek is stored only where
// there is room.
func (q *writeQueue) push(key pagefile.Key, page *pagefile.Page, meek bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	job := &writeJob{key: key, page: page, meek: meek}
	q.jobs = append(q.jobs, job)
	q.bytes += job.bytes()
	q.armLocked()
	q.changed.Broadcast()
}

// has reports whether a page is on its way to the store.
func (q *writeQueue) has(key pagefile.Key) bool {
	return q.any(func(j *writeJob) bool { return j.key == key })
}

// any reports whether there is such a page on its way to the store.
func (q *writeQueue) any(wanted func(*writeJob) bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.ContainsFunc(q.jobs, wanted)
}

// wait returns when everything pushed so far is written, given up or left for later because
// writing it failed, or with the context's error.
func (q *writeQueue) wait(ctx context.Context) error {
	return q.waitFor(ctx, func(*writeJob) bool { return true })
}

// waitFor is wait for some pages.
func (q *writeQueue) waitFor(ctx context.Context, wanted func(*writeJob) bool) error {
	stop := context.AfterFunc(ctx, q.lookAgain)
	defer stop()

	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting++
	defer func() { q.waiting-- }()
	q.changed.Broadcast()
	for slices.ContainsFunc(q.jobs, func(j *writeJob) bool { return q.dueLocked(j) && wanted(j) }) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		q.changed.Wait()
	}
	return nil
}

// lookAgain wakes those who wait.
func (q *writeQueue) lookAgain() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.changed.Broadcast()
}

// close writes what is queued until ctx ends, drops the rest, and stops. A write that does not
// end is not waited for.
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
	timer := time.NewTimer(q.stopIn)
	defer timer.Stop()
	select {
	case <-q.stopped:
	case <-timer.C:
	}
	q.wakes.Wait()
	return err
}

func (q *writeQueue) run(ctx context.Context) {
	defer close(q.stopped)
	for {
		job := q.next()
		if job == nil {
			return
		}
		put := q.store.Put
		if job.meek {
			put = q.store.PutIfRoom
		}
		err := put(ctx, job.page)
		q.wrote(job, err)
		q.finish(job, err)
	}
}

// next waits for a page that is to be written, nil when the queue is closed.
func (q *writeQueue) next() *writeJob {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.closed {
		if i := slices.IndexFunc(q.jobs, q.dueLocked); i >= 0 && !q.yieldsLocked() {
			q.writing = q.jobs[i]
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

// yieldsLocked reports whether the next page is left for later.
func (q *writeQueue) yieldsLocked() bool {
	full := q.refused || q.bytes >= stagingBytesMax
	return q.reading > 0 && !full && q.waiting == 0 && q.now().Sub(q.yielding) < yieldMax
}

// finish learns how a try to write a page ended.
func (q *writeQueue) finish(job *writeJob, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.writing, q.refused = nil, false
	switch {
	case err == nil:
		q.removeLocked(job)
		q.recoveredLocked()
	case givesUp(err):
		// The store itself tells when its daily limit is reached, and when not any more.
		if !errors.Is(err, ledger.ErrWriteCap) && !job.meek {
			q.tellLocked(tellNoRoom, "error", err)
		}
		q.dropLocked(job)
	default:
		q.failLocked(job, err)
	}
	q.armLocked()
	q.changed.Broadcast()
}

// removeLocked takes a job out and keeps its buffer.
func (q *writeQueue) removeLocked(job *writeJob) {
	i := slices.Index(q.jobs, job)
	q.jobs = slices.Delete(q.jobs, i, i+1)
	q.bytes -= job.bytes()
	if len(q.spare) < spareBuffersMax {
		q.spare = append(q.spare, job.page.Payload)
	}
}
