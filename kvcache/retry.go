package kvcache

import (
	"errors"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

/*
What becomes of a page that could not be written:

  - The store has no room, or has written enough for a day. Nothing is wrong, and another try
    would only evict somebody else's pages: the page is given up, and with it what is queued
    that continues it. Its slot's next request tries anew, and a flush where there is room.
  - The page failed. It stays queued and is tried again after 1 s, and after twice as long each
    time, up to half an hour. Others are written meanwhile. After a day it is given up.
  - The store failed: its tier says so, or different pages did in a row. All pages stay, none is
    taken that can wait in the cache, and one at a time shows whether that is over: after 1 s
    and up to half an hour, or 30 s when there is something new to store.

What is queued has a bound in bytes whatever happens: pages that failed go first.
*/
const (
	retryFirst = time.Second
	retryAfter = 30 * time.Second // with requests
	retryIdle  = 30 * time.Minute
	// triesMax is after how many a page is given up: 35 minutes of doubling, and then a day.
	triesMax = 12 + 48
	// tellNoRoom is how often the log says that there is no room.
	tellNoRoom = 10 * time.Minute
	// outageAfter is how many different pages fail in a row where the store does.
	outageAfter = 3
)

// outage is what is known of a store that fails.
type outage struct {
	streak int           // pages in a row that failed when they were first tried
	tried  time.Time     // when the last did
	pause  time.Duration // after it; zero: there is no outage
	until  time.Time     // nothing is tried before
	failed int64         // tries
	told   bool          // the log knows
}

// givesUp reports whether trying again is no use.
func givesUp(err error) bool {
	return errors.Is(err, tier.ErrNoSpace) || errors.Is(err, ledger.ErrWriteCap) ||
		errors.Is(err, pagefile.ErrInvalidPage) || errors.Is(err, tier.ErrClosed)
}

// storeFails reports whether an error is one of the store, whatever the page.
func storeFails(err error) bool {
	return errors.Is(err, tier.ErrTierDown) || errors.Is(err, tier.ErrTierTimeout) ||
		errors.Is(err, tier.ErrRootMissing) || errors.Is(err, tier.ErrRootChanged)
}

// suspended reports whether the store fails and is not tried yet.
func (q *writeQueue) suspended() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.suspendedLocked()
}

func (q *writeQueue) suspendedLocked() bool { return q.now().Before(q.outage.until) }

// dueLocked reports whether a page is being written or may be.
func (q *writeQueue) dueLocked(job *writeJob) bool {
	return job == q.writing || !q.suspendedLocked() && !q.now().Before(job.due)
}

// retry lets everything be tried, however recently it failed.
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

// soonerLocked shortens an outage's pause, because there is something new to store.
func (q *writeQueue) soonerLocked() {
	if out := &q.outage; out.pause > retryAfter {
		out.pause = retryAfter
		out.until = out.tried.Add(retryAfter)
	}
}

// recoveredLocked notes that a page was written.
func (q *writeQueue) recoveredLocked() {
	if q.outage.pause > 0 {
		if q.outage.told {
			q.log.Info("kv tier: storing pages again", "failed", q.outage.failed)
		}
		q.retryLocked()
		q.short = true // nothing was taken meanwhile
	}
	q.outage = outage{}
}

// failLocked leaves a page for later, or all when it is the store that fails.
func (q *writeQueue) failLocked(job *writeJob, err error) {
	if job.tries++; job.tries == 1 {
		q.outage.streak++
	}
	q.outage.failed++
	job.pause = min(max(2*job.pause, retryFirst), retryIdle)
	job.due = q.now().Add(job.pause)
	retryIn := job.pause
	if out := &q.outage; out.pause > 0 || out.streak >= outageAfter || storeFails(err) {
		out.pause = min(max(2*out.pause, retryFirst), retryIdle)
		out.tried = q.now()
		out.until = out.tried.Add(out.pause)
		retryIn = out.pause
	}
	i := slices.Index(q.jobs, job)
	q.jobs = append(slices.Delete(q.jobs, i, i+1), job) // the next is another
	if !q.outage.told && (job.tries == 1 || q.outage.pause > 0) && !q.closed {
		q.outage.told = q.tellLocked(retryAfter, "error", err, "retry_in", retryIn)
	}
	if job.tries >= triesMax {
		q.dropLocked(job)
	}
	for q.failedBytesLocked() > stagingBytesMax {
		q.dropLocked(q.worstLocked())
	}
}

// failedBytesLocked is how much of what is queued has failed.
func (q *writeQueue) failedBytesLocked() (n int64) {
	for _, job := range q.jobs {
		if job.tries > 0 {
			n += job.bytes()
		}
	}
	return n
}

// worstLocked is the page that has failed most often and is not being written, nil for none.
func (q *writeQueue) worstLocked() *writeJob {
	var worst *writeJob
	for _, job := range q.jobs {
		if job != q.writing && job.tries > 0 && (worst == nil || job.tries > worst.tries) {
			worst = job
		}
	}
	return worst
}

// makeRoomLocked reports whether so much may be queued of what cannot wait, after giving up
// pages that failed.
func (q *writeQueue) makeRoomLocked(size int64) bool {
	for q.bytes > 0 && q.bytes+size > q.most {
		worst := q.worstLocked()
		if worst == nil {
			q.refused = true
			q.changed.Broadcast()
			return false
		}
		q.dropLocked(worst)
	}
	return true
}

// dropLocked gives a page up, and what is queued that cannot be found without it.
func (q *writeQueue) dropLocked(job *writeJob) {
	gone := map[pagefile.Key]bool{job.key: true}
	q.removeLocked(job)
	for more := true; more; {
		more = false
		for _, next := range slices.Clone(q.jobs) {
			if gone[next.page.Parent] && next != q.writing {
				gone[next.key], more = true, true
				q.removeLocked(next)
			}
		}
	}
	for key := range gone {
		q.dropped = append(q.dropped, key)
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

// tellLocked logs that a page was not stored, when nothing was said about that for so long.
func (q *writeQueue) tellLocked(every time.Duration, args ...any) bool {
	if q.now().Sub(q.told) < every {
		return false
	}
	q.told = q.now()
	q.log.Warn("kv tier: could not store a page; requests go on, and it is computed again if it is needed before it is stored", args...)
	return true
}

// armLocked sets the timer for when a page may be tried again, or for what is still in the
// cache, once everything that can be written is.
func (q *writeQueue) armLocked() {
	if q.closed || slices.ContainsFunc(q.jobs, q.dueLocked) {
		return
	}
	var at time.Time
	if q.healsLocked() {
		at = q.now()
	}
	for _, job := range q.jobs {
		if at.IsZero() || job.due.Before(at) {
			at = job.due
		}
	}
	if at.Before(q.outage.until) {
		at = q.outage.until
	}
	needed := q.healsLocked() || len(q.jobs) > 0
	if q.waking != nil && needed && at.Equal(q.wakeAt) || !q.disarmLocked() || !needed {
		return
	}
	q.wakes.Add(1)
	q.wakeAt = at
	q.waking = q.after(max(0, at.Sub(q.now())), q.wakeNow)
}

// healsLocked reports whether wake is to be called: in an outage a page that is queued shows
// first whether it is over.
func (q *writeQueue) healsLocked() bool {
	return q.short && (q.outage.pause == 0 || len(q.jobs) == 0)
}

// disarmLocked stops the timer. It reports false when that is late: it sets itself again.
func (q *writeQueue) disarmLocked() bool {
	if q.waking == nil {
		return true
	}
	if !q.waking() {
		return false
	}
	q.waking = nil
	q.wakes.Done()
	return true
}

// wakeNow lets pages be tried whose pause is over, and has those queued that are still in the
// cache.
func (q *writeQueue) wakeNow() {
	defer q.wakes.Done()
	q.mu.Lock()
	q.waking = nil
	heal := q.healsLocked() && !q.suspendedLocked() && !q.closed
	if heal {
		q.short = false
	}
	q.armLocked()
	q.changed.Broadcast()
	q.mu.Unlock()
	if heal {
		q.wake()
	}
}
