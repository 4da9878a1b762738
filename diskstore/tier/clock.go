package tier

import "time"

// ClockSlack is how far clocks may differ that are right: a time that is later by more
// is from the future.
const ClockSlack = time.Minute

// Beyond reports whether a time is later than any clock can have been right about.
func Beyond(t, now time.Time) bool { return t.After(now.Add(ClockSlack)) }

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// WallBetween is the time between two moments, with that in which this machine slept:
// the monotonic clock leaves it out, and others' clocks do not.
func WallBetween(a, b time.Time) time.Duration { return b.Round(0).Sub(a.Round(0)).Abs() }
