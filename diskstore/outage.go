package diskstore

import (
	"context"
	"sync/atomic"
	"time"
)

/*
While the remote tier takes no pages, what leaves the local one is deleted. So nothing
leaves it before a page comes that does not fit. For that page a small part of the
budget is freed at once: to find what was used least recently takes a listing of the
whole tier, which not every Put can wait for.
*/
const (
	// outageShare is the share of the local budget that one collection deletes at
	// most for a page that needs less, while the remote tier takes none.
	outageShare = 64

	// refusalLasts is for how long no page is moved down beforehand after the
	// remote tier did not take one.
	refusalLasts = time.Minute
)

// moment is when something happened last.
type moment struct {
	at atomic.Pointer[time.Time] // nil for never
}

func (m *moment) note(now time.Time) { m.at.Store(&now) }

func (m *moment) clear() { m.at.Store(nil) }

// within reports whether that was less than a time before now.
func (m *moment) within(d time.Duration, now time.Time) bool {
	at := m.at.Load()
	return at != nil && now.Sub(*at) < d
}

// alone reports whether what leaves a tier now is likely to be deleted because the
// tier below does not take it.
func (lv *level) alone() bool {
	if lv != lv.s.local || lv.s.remote == nil {
		return false
	}
	_, took := lv.use.counted()
	return lv.s.guard.Breaker.Resting() || lv.s.refused.within(max(refusalLasts, countPause*took), time.Now())
}

// outageBatch is how many bytes are freed beyond what must be while a tier is alone.
func (lv *level) outageBatch(ctx context.Context) int64 {
	if budget := lv.book.Budget; budget > 0 {
		return budget / outageShare
	}
	_, slack, _ := lv.reserve(ctx) // none where that fails
	return slack
}
