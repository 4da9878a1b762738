package recency

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// Step is the difference between the recencies of two pages of a chain, for each token between their starts.
const Step = 10 * time.Nanosecond

// TouchEvery is the time for which a chain counts as just used: an order within one minute has
// no effect on pages kept for days.
const TouchEvery = time.Minute

// freshShare is the divisor of the lifetime of files in a tier that bounds the delay of a
// chain's recency. freshShare has an effect where a budget fills in less than an hour.
const freshShare = 60

// Of returns the recency of a page in a chain last used at the given time.
func Of(used time.Time, start uint32) time.Time {
	return used.Add(-time.Duration(start) * Step)
}

// Used is the inverse of Of: the last use of the chain of a page with this recency.
func Used(recency time.Time, start uint32) time.Time {
	return recency.Add(time.Duration(start) * Step)
}

// Fresh reports whether a chain used at the given time counts as just used. horizon is the recency up
// to which files of the tier have been evicted, zero for none.
func Fresh(used, now, horizon time.Time) bool {
	if tier.Beyond(used, now) {
		return false
	}
	age := now.Sub(used)
	if !horizon.IsZero() && !tier.Beyond(horizon, now) && age > max(0, now.Sub(horizon))/freshShare {
		return false
	}
	return age < TouchEvery
}

// Forward moves a file's recency forward to the given one, unless another process has moved
// the recency further.
func Forward(ctx context.Context, t tier.Tier, name pagefile.Name, to time.Time) error {
	info, err := tier.Stat(ctx, t, name)
	if err != nil || !info.Used.Before(to) {
		return err
	}
	return t.Touch(ctx, name, to)
}
