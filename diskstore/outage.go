package diskstore

import (
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

// refusal is when a tier last did not take a page from the one above.
type refusal struct {
	at atomic.Pointer[time.Time] // nil after it has taken one
}

func (r *refusal) note() {
	now := time.Now()
	r.at.Store(&now)
}

func (r *refusal) clear() { r.at.Store(nil) }

// within reports whether that was less than a time ago.
func (r *refusal) within(d time.Duration) bool {
	at := r.at.Load()
	return at != nil && time.Since(*at) < d
}

// alone reports whether what leaves a tier now is likely to be deleted because the
// tier below does not take it.
func (s *Store) alone(id tierID) bool {
	if id != tierLocal || s.remote == nil {
		return false
	}
	_, took := s.usage[id].counted()
	return s.remote.breaker.resting() || s.refused.within(max(refusalLasts, countPause*took))
}

// outageBatch is how many bytes are freed beyond what must be while a tier is alone.
func (s *Store) outageBatch(id tierID) int64 { return s.books[id].budget / outageShare }
