package diskstore

import (
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	breakerThreshold  = 3 // failures in a row that open it
	breakerBackoffMin = time.Second
	breakerBackoffMax = time.Minute
)

// breaker keeps a tier that fails from being asked again and again. It is
// closed (all may ask), open (nobody may, until the backoff has passed) or half
// open (one may, and the outcome decides). It logs once for each change. A tier
// that fails again soon after it came back is left alone for longer each time.
type breaker struct {
	log *slog.Logger
	now func() time.Time

	mu       sync.Mutex
	failures int // in a row
	open     bool
	probing  bool
	until    time.Time
	closed   time.Time // when it was closed last
	backoff  time.Duration
	cause    error // of the last failure
	silent   bool  // whoever asks says it
}

func newBreaker(log *slog.Logger, now func() time.Time) *breaker {
	return &breaker{log: log, now: now}
}

// silence keeps changes out of the log until speak.
func (b *breaker) silence() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.silent = true
}

// speak ends silence, and says now that the breaker is open.
func (b *breaker) speak() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.silent = false; b.open {
		b.warnLocked()
	}
}

func (b *breaker) warnLocked() {
	if !b.silent {
		b.log.Warn("kv tier is not usable, continuing without it", "error", b.cause, "retry_in", b.backoff)
	}
}

// downError is ErrTierDown with the reason in its text.
func (b *breaker) downError() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cause == nil {
		return ErrTierDown
	}
	return fmt.Errorf("%w: %v", ErrTierDown, b.cause)
}

// allow reports whether the tier may be asked. After true the caller owes one
// call of success, failure or neutral.
func (b *breaker) allow() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open {
		return true
	}
	if b.probing || b.now().Before(b.until) {
		return false
	}
	b.probing = true
	return true
}

// down reports whether the breaker is open or half open.
func (b *breaker) down() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// resting reports whether nobody may ask the tier now.
func (b *breaker) resting() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open && (b.probing || b.now().Before(b.until))
}

// success closes the breaker.
func (b *breaker) success() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures, b.probing = 0, false
	if b.open {
		b.open, b.closed = false, b.now()
		if !b.silent {
			b.log.Info("kv tier is back")
		}
	}
}

// neutral records an operation that says nothing about the tier.
func (b *breaker) neutral() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
}

// failure counts a failure. Stragglers that fail while the breaker is open do
// not prolong it; a failed probe does.
func (b *breaker) failure(err error, fatal bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures++
	b.cause = err
	switch {
	case b.open && !b.probing:
		return
	case b.open:
		b.backoff = min(2*b.backoff, breakerBackoffMax)
	case fatal || b.failures >= breakerThreshold:
		b.open = true
		if b.now().Sub(b.closed) < breakerBackoffMax {
			b.backoff = min(max(2*b.backoff, breakerBackoffMin), breakerBackoffMax)
		} else {
			b.backoff = breakerBackoffMin
		}
		b.warnLocked()
	default:
		return
	}
	b.probing = false
	b.until = b.now().Add(b.backoff)
}
