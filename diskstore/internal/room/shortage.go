package room

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/recency"
)

/*
While the tier below takes no pages, pages that leave a tier are deleted. So no
page is evicted until another page does not fit. For that page a small part of the budget is
freed at once: finding the pages to evict takes a listing of the whole tier, too long for every
Put.
*/
const (
	// A tier without a budget leaves 1/ReserveShare of its filesystem free. With less free
	// space, a collection frees 1/SlackShare of that share in addition.
	ReserveShare = 20

	// A tier above its budget, or less than 1/TrimShare below it, is collected down to
	// 1/SlackShare below the budget, so that the next page need not wait. A tier below its
	// budget keeps files used within recency.TouchEvery. If such files are all that is left, the next
	// trim of the tier waits for recency.TouchEvery.
	TrimShare  = 64
	SlackShare = 32

	// OutageShare is the divisor of the budget that gives the most bytes that one
	// collection deletes for a page that needs less, while the tier below takes no pages.
	OutageShare = 64

	// RefusalLasts is the time for which no page is moved down in advance after the tier below refused one.
	RefusalLasts = time.Minute

	// A tier is counted again when its last count is older than CountEvery, or FarCountEvery, and than countPause
	// times the duration of that count: a server with a million files must not spend its time
	// counting them.
	CountEvery    = time.Minute
	FarCountEvery = 10 * time.Minute
	countPause    = 100

	// countAgain replaces CountEvery where claims are impossible without a count.
	countAgain = time.Second
)

// nearlyFull reports whether figure bytes are so close to a budget that a tier is trimmed.
func nearlyFull(figure, budget int64) bool { return figure > budget-budget/TrimShare }

// Shortage returns the number of bytes that must be evicted from a tier, as known without a
// listing, and before: only files last used earlier are evicted, or any files if before is
// zero. A caller that ignores before may leave want.recent unset.
func (c *Collector) Shortage(ctx context.Context, want Demand) (over int64, before time.Time, err error) {
	budget := c.files.Book.Budget
	if budget == 0 {
		short, slack, err := c.reserve(ctx)
		if err != nil {
			return 0, time.Time{}, err
		}
		if short > 0 {
			return max(short+slack, want.Disk), time.Time{}, nil
		}
		return want.Disk, want.Before, nil
	}
	figure, known := c.files.Book.Figure()
	if !known {
		return want.Disk, want.Before, nil
	}
	low := budget - budget/SlackShare
	alone := c.alone()
	if alone {
		low = budget - c.outageBatch(ctx)
	}
	switch {
	case figure > budget:
		return max(figure-low, want.Disk), time.Time{}, nil
	case figure+want.Room > budget:
		return max(figure+want.Room-low, want.Disk), want.Before, nil
	case want.Disk > 0:
		return want.Disk, want.Before, nil
	case nearlyFull(figure, budget) && !alone && !c.trimmed.Within(recency.TouchEvery, c.opt.Now()):
		return figure - low, want.recent, nil
	}
	return 0, time.Time{}, nil
}

// reserve returns the bytes by which a tier's filesystem has less free space than a tier without a budget
// leaves, and the bytes to free in addition, so that not every further page needs a listing.
func (c *Collector) reserve(ctx context.Context) (short, slack int64, err error) {
	space, err := c.files.Tier.Space(ctx)
	if err != nil {
		return 0, 0, err
	}
	left := space.Total / ReserveShare
	if c.alone() {
		return left - space.Free, left / OutageShare, nil
	}
	return left - space.Free, left / SlackShare, nil
}

// recentSince returns Demand.recent: recency.TouchEvery ago by the earlier of this machine's clock and the
// filesystem's. With the filesystem's clock unknown, recentSince returns a time before all files.
func (c *Collector) recentSince(ctx context.Context) time.Time {
	now, err := recency.AgeClock(ctx, c.files.Tier, c.opt.Now)
	if err != nil {
		c.opt.Failed(err)
		return time.Unix(0, 0)
	}
	return now.Add(-recency.TouchEvery)
}

// mustGo returns the part of the bytes missing from a tier that must be evicted even by
// deleting pages that should move down.
func (c *Collector) mustGo(ctx context.Context, over int64, want Demand) int64 {
	budget := c.files.Book.Budget
	if c.opt.Below == nil {
		return over
	}
	if budget == 0 {
		short, _, err := c.reserve(ctx)
		if err != nil {
			return over
		}
		return max(min(short, over), want.Disk)
	}
	figure, known := c.files.Book.Figure()
	if !known {
		return want.Disk
	}
	return max(figure+want.Room-budget, want.Disk)
}

// Stale reports whether a tier's files need a new count. A count by any process serves.
func (c *Collector) Stale() bool {
	counted, took := c.files.Counted()
	if other := c.files.Book.State().Counted; other.After(counted) {
		counted = other
	}
	if _, known := c.files.Book.Figure(); !known && c.files.Book.Budget > 0 {
		return time.Since(counted) > max(countAgain, 10*took) // the ledger is lost, or cannot be written
	}
	return time.Since(counted) > max(c.opt.CountEvery, countPause*took)
}

// alone reports whether pages evicted from a tier now are likely to be deleted because the
// tier below does not take them.
func (c *Collector) alone() bool {
	if c.opt.Below == nil {
		return false
	}
	_, took := c.files.Counted()
	return c.opt.Below.Refuses(max(RefusalLasts, countPause*took))
}

// outageBatch is the number of bytes freed in addition while a tier is alone.
func (c *Collector) outageBatch(ctx context.Context) int64 {
	if budget := c.files.Book.Budget; budget > 0 {
		return budget / OutageShare
	}
	_, slack, _ := c.reserve(ctx) // 0 after an error
	return slack
}

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
