package readahead

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func spawn(f func()) { go f() }

// TestResultsComeInOrder, and no more than the bound are done or used at a time.
func TestResultsComeInOrder(t *testing.T) {
	var running, most atomic.Int64
	l := Begin(t.Context(), 100, 3, false, spawn, func(_ context.Context, i int) int {
		n := running.Add(1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		return i
	})
	for want := range 100 {
		require.Equal(t, want, <-l.Next())
		running.Add(-1)
		l.Used()
	}
	require.Nil(t, l.Next())
	l.Stop()
	require.LessOrEqual(t, most.Load(), int64(3))
}

// TestTheFirstAlone: nothing else begins before Together.
func TestTheFirstAlone(t *testing.T) {
	begun := make(chan int, 10)
	l := Begin(t.Context(), 10, 3, true, spawn, func(_ context.Context, i int) int {
		begun <- i
		return i
	})
	first := l.Next()
	require.Equal(t, 0, <-begun)
	<-first
	select {
	case i := <-begun:
		require.Fail(t, "a piece has begun", i)
	default:
	}
	l.Together()
	l.Used()
	for range 2 {
		<-begun
	}
	l.Stop()
}

// TestStop: nothing begins after Stop, and pieces see the end of their context.
func TestStop(t *testing.T) {
	for range 100 {
		var work sync.WaitGroup
		l := Begin(t.Context(), 1000, 2, false, func(f func()) { work.Add(1); go func() { defer work.Done(); f() }() }, func(ctx context.Context, i int) int {
			<-ctx.Done()
			return i
		})
		l.Stop()
		work.Wait()
	}
	ended, end := context.WithCancel(t.Context())
	end()
	l := Begin(ended, 5, 2, false, spawn, func(context.Context, int) int { panic("it began") })
	require.Nil(t, l.Next())
	l.Stop()
}
