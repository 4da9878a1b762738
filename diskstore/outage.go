package diskstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

/*
While the remote tier takes no pages, pages evicted from the local tier are deleted. So no
page is evicted until another page does not fit. For that page a small part of the budget is
freed at once: finding the least recently used pages takes a listing of the whole tier, too
long for every Put.
*/
const (
	// outageShare is the divisor of the local budget that gives the most bytes that one
	// collection deletes for a page that needs less, while the remote tier takes no pages.
	outageShare = 64

	// refusalLasts is the time for which no page is moved down in advance after the remote
	// tier refused one.
	refusalLasts = time.Minute

	// futileMost is the longest time for which no page is deleted for space on a full
	// filesystem after deleting pages gave none.
	futileMost = 24 * time.Hour
)

// moment is the time of the last event of a kind.
type moment struct {
	at atomic.Pointer[time.Time] // nil for never
}

func (m *moment) note(now time.Time) { m.at.Store(&now) }

func (m *moment) clear() { m.at.Store(nil) }

// within reports whether the event was less than d before now.
func (m *moment) within(d time.Duration, now time.Time) bool {
	at := m.at.Load()
	return at != nil && now.Sub(*at) < d
}

// alone reports whether pages evicted from a tier now are likely to be deleted because the
// tier below does not take them.
func (lv *level) alone() bool {
	if lv != lv.s.local || lv.s.remote == nil {
		return false
	}
	_, took := lv.files.Counted()
	return lv.s.guard.Breaker.Resting() || lv.s.refused.within(max(refusalLasts, countPause*took), time.Now())
}

// outageBatch is the number of bytes freed in addition while a tier is alone.
func (lv *level) outageBatch(ctx context.Context) int64 {
	if budget := lv.book.Budget; budget > 0 {
		return budget / outageShare
	}
	_, slack, _ := lv.reserve(ctx) // 0 after an error
	return slack
}

// futile keeps pages of a full filesystem from being deleted for nothing. Where snapshots hold
// the space of deleted files, or other data uses up a quota, one page after the other would
// go, and no new page would come.
type futile struct {
	mu    sync.Mutex
	pause time.Duration // 0 after a page was written
	until time.Time
}

// note records that a page was not written although others were deleted for its space.
func (f *futile) note(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pause = min(max(2*f.pause, refusalLasts), futileMost)
	f.until = now.Add(f.pause)
}

// clear records that a page was written.
func (f *futile) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pause, f.until = 0, time.Time{}
}

// is reports whether no page is deleted for space now.
func (f *futile) is(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return now.Before(f.until)
}
