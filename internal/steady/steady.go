// Package steady ends the wait for operations that hang, as on a local disk that does not answer.
package steady

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
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
// A result that comes later is passed to late, which may be nil.
func Do[T any](ctx context.Context, g *Guard, wait Wait, do func() (T, error), late func(T, error)) (T, error) {
	if g.Hangs() {
		return *new(T), ErrHung
	}
	end, cancel := context.WithTimeout(context.Background(), wait.Most)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(wait.Grace, cancel) })()
	value, inTime, err := Within(end.Done(), do, func(value T, err error) {
		if late != nil {
			late(value, err)
		}
		g.note(-1)
	}, nil)
	if !inTime {
		g.note(1)
		return value, ErrHung
	}
	return value, err
}

// Within runs fn in a goroutine, and waits for its result until end is closed. A result that comes
// later goes to late, and inTime is false. After that the goroutine runs then. late and then may be nil.
func Within[T any](end <-chan struct{}, fn func() (T, error), late func(T, error), then func()) (v T, inTime bool, err error) {
	type outcome struct {
		v   T
		err error
	}
	done := make(chan outcome, 1)
	var taken atomic.Bool // set by the side that handles the result
	go func() {
		v, err := fn()
		if taken.CompareAndSwap(false, true) {
			done <- outcome{v, err}
		} else if late != nil {
			late(v, err)
		}
		if then != nil {
			then()
		}
	}()
	select {
	case out := <-done:
		return out.v, true, out.err
	case <-end:
		if taken.CompareAndSwap(false, true) {
			return v, false, nil
		}
		out := <-done
		return out.v, true, out.err
	}
}
