package recency

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/reuse"
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

// Of returns the recency of a page, without uses, in a chain last used at the given time.
func Of(used time.Time, start uint32) time.Time {
	return used.Truncate(Step).Add(-time.Duration(start) * Step)
}

// Used is the inverse of Of: the last use of the chain of a page with this recency, whatever its uses.
func Used(recency time.Time, start uint32) time.Time {
	return recency.Truncate(Step).Add(time.Duration(start) * Step)
}

// Uses returns the number of uses that a recency has, 0 to reuse.MostUses.
func Uses(recency time.Time) int {
	return min(recency.Nanosecond()%int(Step), reuse.MostUses)
}

// WithUses returns a recency with a number of uses.
func WithUses(recency time.Time, uses int) time.Time {
	return recency.Truncate(Step).Add(time.Duration(min(max(0, uses), reuse.MostUses)))
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

// useEvery is the time within which a file's uses count once: a chain moves up for the room of a new page, too, soon
// after it was used. Its begin is fixed, so that many short moves do not take a page far from those that continue it
// without a count: a page that is as often used as these, and idle for less long, may be worth less.
const useEvery = time.Second

// Again reports whether a move of a file's recency counts as a use of the file.
func Again(was, to time.Time) bool { return to.Truncate(useEvery).After(was.Truncate(useEvery)) }

// Forward moves a file's recency forward to the given one, unless another process has moved the recency
// further, and counts a use of the file in it, up to a number of uses. A file that is given more uses gets these.
func Forward(ctx context.Context, t tier.Tier, name pagefile.Name, to time.Time, most int, used Use) (was tier.Info, now time.Time, err error) {
	was, err = tier.Stat(ctx, t, name)
	if err != nil || !was.Used.Before(to) {
		return was, was.Used, err
	}
	uses, idle := Uses(was.Used), to.Sub(was.Used)
	if !Again(was.Used, to) {
		now = WithUses(to, max(uses, Uses(to)))
		return was, now, t.Touch(ctx, name, now)
	}
	now = WithUses(to, min(max(uses+1, Uses(to)), most))
	if err = t.Touch(ctx, name, now); err == nil && name.Class == pagefile.ClassPage {
		used(uses, idle)
	}
	return was, now, err
}

// Use is told of the use of a full page, of its number of uses before, and of the time since the last one. It
// returns the number of uses now.
type Use func(uses int, idle time.Duration) int
