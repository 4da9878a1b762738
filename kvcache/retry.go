package kvcache

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/steady"
)

/*
Handling of a page that could not be written:

  - The store has no room, or has written its limit for the day. Nothing is wrong, and another
    attempt would only evict other pages: the page is given up, with the queued pages that
    continue it. The slot's next request tries the page again; a flush tries only where there
    is room.
  - The page failed. The page stays queued and is tried again after 1 s, and then after twice
    the last pause, up to half an hour. Other pages are written meanwhile. After a day the page
    is given up.
  - The store failed: its tier reports a failure, or different pages failed in a row. All pages
    stay queued, and no page is queued that can wait in the cache. One page at a time is tried,
    to see whether the outage is over: after pauses from 1 s up to half an hour, or 30 s when
    there is a new page to store.

The queue is always bounded in bytes: pages that failed are dropped first.
*/
const (
	retryFirst = time.Second
	retryAfter = 30 * time.Second // longest pause while requests bring new pages
	retryIdle  = 30 * time.Minute
	// triesMax is the number of attempts after which a page is given up: 35 minutes of
	// doubling pauses, and then a day.
	triesMax = 12 + 48
	// outageAfter is the number of different pages that fail in a row before the store
	// counts as failing.
	outageAfter = 3
)

// outage describes a failing store.
type outage struct {
	streak int           // pages in a row whose first attempt failed
	tried  time.Time     // time of the last failure
	pause  time.Duration // pause after tried; zero without an outage
	until  time.Time     // end of the pause
}

// givesUp reports whether another attempt is of no use.
func givesUp(err error) bool {
	return errors.Is(err, tier.ErrNoSpace) || errors.Is(err, ledger.ErrWriteCap) ||
		errors.Is(err, pagefile.ErrInvalidPage) || errors.Is(err, tier.ErrClosed)
}

// storeFails reports whether an error concerns the whole store and not one page.
func storeFails(err error) bool {
	return errors.Is(err, tier.ErrTierDown) || errors.Is(err, tier.ErrTierTimeout) ||
		errors.Is(err, tier.ErrRootMissing) || errors.Is(err, tier.ErrRootChanged)
}

// unreadable reports whether an error of reading a page concerns this page, and not the store, the
// reader or the rows that were wanted. The store has set the page aside, or Put finds it in its
// place.
func unreadable(err error) bool {
	if failed := (*writeError)(nil); errors.As(err, &failed) {
		return false
	}
	for _, other := range []error{pagefile.ErrMismatch, pagefile.ErrInvalidPage, context.Canceled, context.DeadlineExceeded, steady.ErrHung, errLeftBehind, tier.ErrClosed} {
		if errors.Is(err, other) {
			return false
		}
	}
	return err != nil && !storeFails(err)
}

// suspended reports whether the store fails and the pause is not over.
func (q *writeQueue) suspended() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.suspendedLocked()
}

func (q *writeQueue) suspendedLocked() bool { return q.now().Before(q.outage.until) }

// dueLocked reports whether a page is being written or may be written now.
func (q *writeQueue) dueLocked(job *writeJob) bool {
	return job == q.writing || !q.suspendedLocked() && !q.now().Before(job.due)
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
		q.retryLocked()
		q.short = true // stage refused pages during the outage
	}
	q.outage = outage{}
}

// failLocked puts a page off, or all pages when the store fails.
func (q *writeQueue) failLocked(job *writeJob, err error) {
	if job.tries++; job.tries == 1 {
		q.outage.streak++
	}
	job.pause = min(max(2*job.pause, retryFirst), retryIdle)
	job.due = q.now().Add(job.pause)
	if out := &q.outage; out.pause > 0 || out.streak >= outageAfter || storeFails(err) {
		out.pause = min(max(2*out.pause, retryFirst), retryIdle)
		out.tried = q.now()
		out.until = out.tried.Add(out.pause)
	}
	i := slices.Index(q.jobs, job)
	q.jobs = append(slices.Delete(q.jobs, i, i+1), job) // another page is tried next
	if job.tries >= triesMax {
		q.dropLocked(job)
	}
	for q.failedBytesLocked() > q.staging() {
		q.dropLocked(q.worstLocked())
	}
}

// failedBytesLocked sums the bytes of queued pages that have failed.
func (q *writeQueue) failedBytesLocked() (n int64) {
	for _, job := range q.jobs {
		if job.tries > 0 {
			n += job.bytes()
		}
	}
	return n
}

// worstLocked is the page with the most failed attempts that is not being written, or nil.
func (q *writeQueue) worstLocked() *writeJob {
	var worst *writeJob
	for _, job := range q.jobs {
		if job != q.writing && job.tries > 0 && (worst == nil || job.tries > worst.tries) {
			worst = job
		}
	}
	return worst
}

// makeRoomLocked makes room for size bytes of rows that cannot wait, or for which only pages that
// failed leave no room, by giving up pages that failed. makeRoomLocked reports whether there is room.
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

// dropLocked gives up a page, and the queued pages that continue it: a lookup could not
// reach them.
func (q *writeQueue) dropLocked(job *writeJob) {
	gone := map[pagefile.Key]bool{job.key: true}
	q.removeLocked(job)
	q.dropped = append(q.dropped, job.key)
	for more := true; more; {
		more = false
		for _, next := range slices.Clone(q.jobs) {
			if gone[next.page.Parent] && next != q.writing && q.giveUpLocked(next) {
				gone[next.key], more = true, true
			}
		}
	}
}

// giveUpLocked removes a page, or lets endCopies give it up: its buffer is being written to.
// giveUpLocked reports whether the page was not given up before.
func (q *writeQueue) giveUpLocked(job *writeJob) bool {
	switch c := job.copy; {
	case c == nil || !c.begun:
		q.removeLocked(job)
		q.dropped = append(q.dropped, job.key)
	case c.doomed:
		return false
	default:
		c.doomed = true
	}
	return true
}

// takeDropped returns the pages that were given up since the last call.
func (q *writeQueue) takeDropped() []pagefile.Key {
	q.mu.Lock()
	defer q.mu.Unlock()
	dropped := q.dropped
	q.dropped = nil
	return dropped
}

// armLocked sets the timer when no queued page is due: to the time at which a page may be
// tried again, or pages or tails that are still in the cache may be queued.
func (q *writeQueue) armLocked() {
	if q.closed || slices.ContainsFunc(q.jobs, q.dueLocked) {
		return
	}
	var at time.Time
	if q.healsLocked() {
		at = q.now()
	} else if q.looksLocked() {
		at = q.tails // not due yet
	}
	needed := !at.IsZero() || len(q.jobs) > 0
	for _, job := range q.jobs {
		if at.IsZero() || job.due.Before(at) {
			at = job.due
		}
	}
	if at.Before(q.outage.until) {
		at = q.outage.until
	}
	if q.waking != nil && needed && at.Equal(q.wakeAt) || !q.disarmLocked() || !needed {
		return
	}
	q.wakes.Add(1)
	q.wakeAt = at
	q.waking = q.after(max(0, at.Sub(q.now())), q.wakeNow)
}

// wakeAtLatest has wake called at some time, or earlier.
func (q *writeQueue) wakeAtLatest(at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.tails.IsZero() || at.Before(q.tails) {
		q.tails = at
		q.armLocked()
	}
}

// healsLocked reports whether to call wake.
func (q *writeQueue) healsLocked() bool {
	tails := !q.tails.IsZero() && !q.now().Before(q.tails)
	return (q.short || tails) && q.looksLocked()
}

// looksLocked reports whether wake may queue pages. In an outage, one queued page is tried first
// and shows whether the outage is over.
func (q *writeQueue) looksLocked() bool { return q.outage.pause == 0 || len(q.jobs) == 0 }

// disarmLocked stops the timer. disarmLocked reports false when the timer has fired: wakeNow
// then sets the timer again.
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

// wakeNow starts attempts of pages whose pause is over, and calls wake to queue pages that
// are still in the cache.
func (q *writeQueue) wakeNow() {
	defer q.wakes.Done()
	q.mu.Lock()
	q.waking = nil
	heal := q.healsLocked() && !q.suspendedLocked() && !q.closed
	if heal {
		q.short, q.tails = false, time.Time{}
	}
	q.armLocked()
	q.changed.Broadcast()
	q.mu.Unlock()
	if heal {
		q.wake()
	}
}
