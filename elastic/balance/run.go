package balance

import (
	"context"
	"os"
	"time"

	"github.com/kvtier/kvtier/elastic/segment"
)

// Every is the time between two looks. Processes obey in half of it.
const Every = 500 * time.Millisecond

// turnTime is how long one process is first where there is too little for all. Prompts wait longer.
const turnTime = 3 * time.Second

// A Balancer divides the memory of one device.
type Balancer struct {
	Budget int64                        // bytes
	Users  []uint32                     // whose processes take part; none: this user's
	Of     func(s segment.Segment) bool // the processes of these that it is divided between

	// Now is the clock by which processes take turns; nil: time.Now.
	Now func() time.Time

	// Changed is told each new limit, and the error where it could not be set.
	Changed func(c Change, err error)
}

// leastPart of the budget is divided in any case, also where processes that no limit reaches now hold all
// of it: a limit of nothing is refused.
const leastPart = 64

// Run looks until ctx ends. It returns an error only where no segment can be looked at.
func (b *Balancer) Run(ctx context.Context) error {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	for {
		if err := b.Look(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Look sets the limits that follow from the segments of now. Processes that have ended, and those of
// users other than Users, are left out: anyone may make a file that says how much memory it needs. The
// limit of a segment stays whose lock is held, or that a tool has deleted.
func (b *Balancer) Look() error {
	users := b.Users
	if len(users) == 0 {
		users = []uint32{uint32(os.Getuid())}
	}
	all, err := segment.List(users...)
	if err != nil {
		return err
	}
	var mine []segment.Segment
	budget, unknown := b.Budget, false
	for _, s := range all {
		switch {
		case s.State == segment.Dead || !b.Of(s):
		case s.State == segment.Locked || s.State == segment.Deleted:
			budget = max(b.Budget/leastPart, budget-held(s))
			unknown = unknown || s.State == segment.Deleted
		default:
			mine = append(mine, s)
		}
	}
	for _, c := range Changes(budget, mine, b.turn()) {
		if c.To > c.From && unknown {
			continue // more than its limit may be in use where a segment was deleted
		}
		b.Changed(c, segment.SetLimit(c.Name, c.To))
	}
	return nil
}

// turn tells which process is first.
func (b *Balancer) turn() int {
	now := time.Now
	if b.Now != nil {
		now = b.Now
	}
	return int(max(0, now().Unix()) / int64(turnTime.Seconds()))
}
