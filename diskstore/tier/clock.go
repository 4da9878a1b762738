package tier

import "time"

// ClockSlack bounds the difference between two right clocks: a time later than that by more is
// in the future.
const ClockSlack = time.Minute

// Beyond reports whether a time is later than any right clock can show at now.
func Beyond(t, now time.Time) bool { return t.After(now.Add(ClockSlack)) }

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// WallBetween is the time between two moments, including time for which this machine slept:
// the monotonic clock does not count sleep, and other machines' clocks do.
func WallBetween(a, b time.Time) time.Duration { return b.Round(0).Sub(a.Round(0)).Abs() }
