// Package steady ends the wait for operations that hang, such as those of a local disk that
// does not answer.
package steady

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrHung reports an operation that is left behind, or was not begun because another is. An
// operation that is left behind still uses its memory.
var ErrHung = errors.New("the page store does not answer")

// Wait bounds the wait for an operation.
type Wait struct {
	Most  time.Duration // in all
	Grace time.Duration // after the end of the operation's context
}

// Guard counts the operations of one store that are left behind. While there is one, all
// others fail at once, so that their number is bounded. The zero Guard is ready for use.
type Guard struct {
	mu   sync.Mutex
	left int
}

// Hangs reports whether an operation is left behind.
func (g *Guard) Hangs() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.left > 0
}

func (g *Guard) note(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left += n
}

// Ended waits until a channel is closed, for some time at most, and reports whether it was.
func Ended(done <-chan struct{}, most time.Duration) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
	}
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// Do runs an operation in a goroutine of its own and waits for its result, or returns ErrHung.
// A result that comes later is passed to late.
func Do[T any](ctx context.Context, g *Guard, wait Wait, do func() (T, error), late func(T, error)) (value T, err error) {
	if g.Hangs() {
		return value, ErrHung
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := do()
		done <- result{value, err}
	}()
	timer := time.NewTimer(wait.Most)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.value, r.err
	case <-timer.C:
	case <-ctx.Done():
		timer.Reset(min(wait.Most, wait.Grace))
		select {
		case r := <-done:
			return r.value, r.err
		case <-timer.C:
		}
	}
	g.note(1)
	go func() {
		r := <-done
		late(r.value, r.err)
		g.note(-1)
	}()
	return value, ErrHung
}
