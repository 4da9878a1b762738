package room

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/tier"
)

var (
	// ErrExhausted reports that a collection could not make the wanted room: only pages used later
	// than the page that needs it are left, or pages that it continues.
	ErrExhausted = errors.New("diskstore: nothing older than the page that needs room can be evicted")

	// ErrOvertaken is an ErrExhausted of a collection during which files came into use that it would
	// have evicted, or others took the room that it made. Another collection may make room.
	ErrOvertaken = fmt.Errorf("%w: others used pages or room meanwhile", ErrExhausted)

	// ErrUnreachable reports a page that no look-up could find: the page before it is not stored.
	ErrUnreachable = fmt.Errorf("the page it continues is not stored: %w", tier.ErrNoSpace)

	// errStays reports that a page was not evicted: the tier below does not take the page now,
	// and the need for room is too small to delete the page.
	errStays = errors.New("diskstore: the page cannot move down now")
)

// Demand is the goal of a collection in addition to keeping a tier within its limit.
type Demand struct {
	Room   int64     // bytes that must fit in the budget
	Disk   int64     // bytes to free, independent of the budget
	Before time.Time // only files last used earlier are evicted for Room and Disk

	// after has the places of the pages that need the room. The pages before these places stay
	// and have been moved up to the recency of a chain used at used.
	after []recency.Place
	used  time.Time

	// recent is the start of the last recency.TouchEvery: a tier that is only nearly full keeps files
	// used since.
	recent time.Time
}

// demandAt returns the demand of a page at a place, with the page's recency.
func demandAt(at recency.Place, recent time.Time) Demand {
	return Demand{Before: recent, after: []recency.Place{at}, used: recency.Used(recent, at.Start)}
}

// join returns a demand that satisfies both.
func (d Demand) join(o Demand) Demand {
	d.Room, d.Disk = max(d.Room, o.Room), max(d.Disk, o.Disk)
	if o.Before.After(d.Before) {
		d.Before = o.Before
	}
	if d.after = append(d.after, o.after...); o.used.After(d.used) {
		d.used = o.used
	}
	return d
}
