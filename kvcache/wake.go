package kvcache

import (
	"slices"
	"time"
)

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
