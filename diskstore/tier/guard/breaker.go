package guard

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	breakerThreshold  = 3 // failures in a row that open the breaker
	breakerBackoffMin = time.Second
	breakerBackoffMax = time.Minute
)

// breaker keeps operations from a tier that fails. A breaker is closed (all operations are allowed), open
// (none is, until the backoff has passed) or half open (one operation is, and its result decides). Each
// change is logged once. The backoff of a tier that fails again soon after it came back is longer each time.
type breaker struct {
	log *slog.Logger
	Now func() time.Time

	Mu       sync.Mutex
	failures int // in a row
	open     bool
	probing  bool
	Until    time.Time
	closed   time.Time // time of the last change to closed
	backoff  time.Duration
	cause    error // of the last failure
	silent   bool  // callers report errors themselves
	refused  bool  // the last write was refused

	remedy string // for a refused write
}

func newBreaker(log *slog.Logger, now func() time.Time) *breaker {
	return &breaker{log: log, Now: now, remedy: refusedRemedy}
}

// Silence keeps changes out of the log until Speak.
func (b *breaker) Silence() {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	b.silent = true
}

// Speak ends the silence, and logs if the breaker is open.
func (b *breaker) Speak() {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	if b.silent = false; b.open {
		b.warnLocked()
	}
}

func (b *breaker) warnLocked() {
	if !b.silent {
		b.log.Warn("kv tier is not usable, continuing without it", "error", b.cause, "retry_in", b.backoff)
	}
}

// downError is tier.ErrTierDown with the reason in its text.
func (b *breaker) downError() error {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	if b.cause == nil {
		return tier.ErrTierDown
	}
	return fmt.Errorf("%w: %v", tier.ErrTierDown, b.cause)
}

// allow reports whether an operation may call the tier. After true the caller makes one call
// of Success, failure or neutral.
func (b *breaker) allow() bool {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	if !b.open {
		return true
	}
	if b.probing || b.Now().Before(b.Until) {
		return false
	}
	b.probing = true
	return true
}

// Down reports whether the breaker is open or half open.
func (b *breaker) Down() bool {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	return b.open
}

// Resting reports whether no operation may call the tier now.
func (b *breaker) Resting() bool {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	return b.open && (b.probing || b.Now().Before(b.Until))
}

// Success closes the breaker.
func (b *breaker) Success() {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	b.failures, b.probing = 0, false
	if b.open {
		b.open, b.closed = false, b.Now()
		if !b.silent {
			b.log.Info("kv tier is back")
		}
	}
}

const (
	refusedRemedy = "mount and export it for writing; for NFS without root_squash or all_squash, or run every server as the user who owns the directory and the files below it"
	engineRemedy  = "let the user or key of its address write"
)

// refuses records a write that the filesystem refuses, and logs the first of those in a row: the tier
// can be read.
func (b *breaker) refuses(err error) {
	b.Success()
	b.Mu.Lock()
	defer b.Mu.Unlock()
	if !b.refused && !b.silent {
		b.log.Warn("kv tier refuses writes, and is only read: pages that leave the local tier are lost", "error", err, "remedy", b.remedy)
	}
	b.refused = true
}

// stored records that a page was stored, and logs it after a refusal.
func (b *breaker) stored() {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	if b.refused && !b.silent {
		b.log.Info("kv tier may be written again")
	}
	b.refused = false
}

// neutral records an operation that shows nothing about the tier.
func (b *breaker) neutral() {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	b.probing = false
}

// failure counts a failure. Operations begun before do not prolong the backoff when they fail
// while the breaker is open; a failed probe does.
func (b *breaker) failure(err error, fatal bool) {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	b.failures++
	b.cause = err
	switch {
	case b.open && !b.probing:
		return
	case b.open:
		b.backoff = min(2*b.backoff, breakerBackoffMax)
	case fatal || b.failures >= breakerThreshold:
		b.open = true
		if b.Now().Sub(b.closed) < breakerBackoffMax {
			b.backoff = min(max(2*b.backoff, breakerBackoffMin), breakerBackoffMax)
		} else {
			b.backoff = breakerBackoffMin
		}
		b.warnLocked()
	default:
		return
	}
	b.probing = false
	b.Until = b.Now().Add(b.backoff)
}
