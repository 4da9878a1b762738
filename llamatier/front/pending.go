//go:build unix

package front

import (
	"time"

	"github.com/kvtier/kvtier/internal/steady"
)

// pending is the result of a function that runs in the background because it may hang.
type pending[T any] struct {
	done  chan struct{} // closed when value and err are there
	value T
	err   error
}

// begin runs a function in the background.
func begin[T any](f func() (T, error)) *pending[T] {
	p := &pending[T]{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.value, p.err = f()
	}()
	return p
}

// within waits for the result, at most some time, and reports whether it is there.
func (p *pending[T]) within(most time.Duration) bool {
	return steady.Ended(p.done, most)
}

// wait waits for the result as long as it takes.
func (p *pending[T]) wait() (T, error) {
	<-p.done
	return p.value, p.err
}
