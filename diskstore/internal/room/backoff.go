package room

import (
	"sync"
	"sync/atomic"
	"time"
)

// Moment is the time of the last event of a kind.
type Moment struct {
	at atomic.Pointer[time.Time] // nil for never
}

// Note notes an event.
func (m *Moment) Note(now time.Time) { m.at.Store(&now) }

// Clear forgets it.
func (m *Moment) Clear() { m.at.Store(nil) }

// Within reports whether the event was less than d before now.
func (m *Moment) Within(d time.Duration, now time.Time) bool {
	at := m.at.Load()
	return at != nil && now.Sub(*at) < d
}

// backoffMost is the longest time for which no page is deleted for space on a full
// filesystem after deleting pages gave none.
const backoffMost = 24 * time.Hour

// Backoff keeps pages of a full filesystem from being deleted for nothing. Where snapshots hold
// the space of deleted files, or other data uses up a quota, one page after the other would
// go, and no new page would come.
type Backoff struct {
	mu    sync.Mutex
	pause time.Duration // 0 after a page was written
	until time.Time
}

// Note records that a page was not written although others were deleted for its space.
func (f *Backoff) Note(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pause = min(max(2*f.pause, RefusalLasts), backoffMost)
	f.until = now.Add(f.pause)
}

// Clear records that a page was written.
func (f *Backoff) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pause, f.until = 0, time.Time{}
}

// Is reports whether no page is deleted for space now.
func (f *Backoff) Is(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return now.Before(f.until)
}
