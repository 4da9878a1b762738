// Package readahead does pieces of work, a few at a time, and hands over the results in their order.
package readahead

import "context"

// Line is a line of pieces of work. One goroutine uses a Line.
type Line[T any] struct {
	results chan chan T   // one channel per piece, in order
	room    chan struct{} // one element per piece that is being done or used
	stop    context.CancelFunc
	ended   chan struct{} // closed when no more pieces begin
}

// Begin begins n pieces of work. At most most of them are being done or used at a time. With
// alone, only the first one is done until Together is called. spawn runs a function in a
// goroutine of its own. After ctx ended, no piece begins.
func Begin[T any](ctx context.Context, n, most int, alone bool, spawn func(func()), do func(ctx context.Context, i int) T) *Line[T] {
	ctx, stop := context.WithCancel(ctx)
	l := &Line[T]{results: make(chan chan T, most), room: make(chan struct{}, most), stop: stop, ended: make(chan struct{})}
	if alone {
		for range most - 1 {
			l.room <- struct{}{}
		}
	}
	go func() {
		defer close(l.ended)
		defer close(l.results)
		for i := range n {
			select {
			case l.room <- struct{}{}:
			case <-ctx.Done():
			}
			if ctx.Err() != nil { // select may have chosen room although the context ended
				return
			}
			result := make(chan T, 1)
			l.results <- result // never blocks: results has as much capacity as room
			spawn(func() { result <- do(ctx, i) })
		}
	}()
	return l
}

// Next returns the channel on which the next result comes, and nil if there is none.
func (l *Line[T]) Next() <-chan T { return <-l.results }

// Used says that a result is not needed any more.
func (l *Line[T]) Used() { <-l.room }

// Together ends doing one piece alone.
func (l *Line[T]) Together() {
	for range cap(l.room) - 1 {
		<-l.room
	}
}

// Stop ends the context of all pieces, and returns when no more begin. Some may still go on.
func (l *Line[T]) Stop() {
	l.stop()
	<-l.ended
}
