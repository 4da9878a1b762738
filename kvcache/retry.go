package kvcache

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/engine"
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
	// outageAfter is how many different pages fail in a row before the store counts as failing.
	outageAfter = 3
)

// outage describes a failing store.
type outage struct {
	streak int           // pages in a row whose first attempt failed
	tried  time.Time     // time of the last failure
	pause  time.Duration // pause after tried; zero without an outage
	until  time.Time     // end of the pause
}

// suspends reports whether the pause is not over.
func (o *outage) suspends(now time.Time) bool { return now.Before(o.until) }

// sooner shortens the pause, because there is something new to store.
func (o *outage) sooner() {
	if o.pause > retryAfter {
		o.pause = retryAfter
		o.until = o.tried.Add(retryAfter)
	}
}

// failed notes that a page could not be written. first: it was the page's first attempt. all: the
// whole store fails.
func (o *outage) failed(now time.Time, first, all bool) {
	if first {
		o.streak++
	}
	if o.pause > 0 || o.streak >= outageAfter || all {
		o.pause = min(max(2*o.pause, retryFirst), retryIdle)
		o.tried = now
		o.until = now.Add(o.pause)
	}
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
// reader or the rows that were wanted. The store has set the page aside, or Put finds it in its place.
func unreadable(err error) bool {
	if failed := (*writeError)(nil); errors.As(err, &failed) {
		return false
	}
	for _, other := range []error{pagefile.ErrMismatch, pagefile.ErrInvalidPage, context.Canceled, context.DeadlineExceeded, steady.ErrHung, engine.ErrLeftBehind, tier.ErrClosed} {
		if errors.Is(err, other) {
			return false
		}
	}
	return err != nil && !storeFails(err)
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

// disarmLocked stops the timer. False: it has fired, and wakeNow sets it again.
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

// wakeNow starts attempts that are due, and has pages queued that are still in the cache.
func (q *writeQueue) wakeNow() {
	defer q.wakes.Done()
	q.mu.Lock()
	q.waking = nil
	heal := q.healsLocked() && !q.outage.suspends(q.now()) && !q.closed
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
