package work

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvtier/kvtier/diskstore/tier"
)

// Close ends operations, waits for them, and refuses new ones.
func TestLifeEnds(t *testing.T) {
	l := NewLife()
	ctx, leave, err := l.Enter(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, l.Running())
	closed := make(chan bool)
	go func() { closed <- l.Close(time.Minute) }()
	<-ctx.Done()
	require.ErrorIs(t, ctx.Err(), context.Canceled)
	select {
	case <-closed:
		t.Fatal("an operation runs")
	default:
	}
	leave()
	require.True(t, <-closed)
	_, _, err = l.Enter(t.Context())
	require.ErrorIs(t, err, tier.ErrClosed)
	require.False(t, l.Close(time.Minute), "a second time")
}

// Close does not wait longer than its patience for an operation that does not end.
func TestLifeHasPatience(t *testing.T) {
	l := NewLife()
	_, leave, err := l.Enter(t.Context())
	require.NoError(t, err)
	require.True(t, l.Close(time.Nanosecond))
	leave()
	require.Zero(t, l.Running())
}

// StandBack waits until the last operation has ended.
func TestTrafficStandsBack(t *testing.T) {
	var traffic Traffic
	require.NoError(t, traffic.StandBack(t.Context()))
	first, second := traffic.Enter(), traffic.Enter()
	ctx, cancel := context.WithCancel(t.Context())
	first()
	cancel()
	require.ErrorIs(t, traffic.StandBack(ctx), context.Canceled, "one operation runs")
	passed := make(chan error)
	go func() { passed <- traffic.StandBack(t.Context()) }()
	second()
	require.NoError(t, <-passed)
	require.ErrorIs(t, traffic.StandBack(ctx), context.Canceled, "nothing runs, and the context has ended")
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A function that starts the clock again is called again, until Stop, which waits for it.
func TestOnceAgain(t *testing.T) {
	var c Once
	calls, begun, goOn := 0, make(chan struct{}), make(chan struct{})
	var again func()
	again = func() {
		calls++
		begun <- struct{}{}
		<-goOn
		c.Start(time.Millisecond, again)
	}
	c.Start(time.Millisecond, again)
	require.True(t, c.Due())
	<-begun
	goOn <- struct{}{}
	<-begun
	stopped := make(chan struct{})
	go func() { c.Stop(); close(stopped) }()
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.stopped
	}, time.Minute, time.Millisecond)
	select {
	case <-stopped:
		t.Fatal("a call runs")
	case goOn <- struct{}{}:
	}
	<-stopped
	c.Start(0, again)
	require.Equal(t, 2, calls, "stopped for good")
	require.False(t, c.Due())
}

func TestOnceClock(t *testing.T) {
	var c Once
	fired := make(chan int, 10)
	for i := range 5 {
		c.Start(time.Millisecond, func() { fired <- i })
	}
	require.Equal(t, 0, <-fired, "the first Start counts")
	c.Start(time.Millisecond, func() { fired <- 9 })
	require.Equal(t, 9, <-fired)
	c.Start(time.Hour, func() { fired <- 10 })
	c.Stop()
	c.Start(0, func() { fired <- 11 })
	require.Empty(t, fired)
}

func TestLimitOfQueuedJobs(t *testing.T) {
	b := NewQueue()
	hold, begun := make(chan struct{}), make(chan struct{})
	b.Submit("first", func(context.Context) { close(begun); <-hold })
	<-begun // the job has left the queue
	ran := 0
	for i := range maxQueuedJobs + 1 {
		b.Submit(i, func(context.Context) { ran++ })
		b.Submit(i, func(context.Context) { ran += 1_000_000 }) // a job of the same key is queued already
	}
	close(hold)
	require.NoError(t, b.Wait(t.Context()))
	require.Equal(t, maxQueuedJobs, ran, "the last one found the queue full")
	require.NoError(t, b.Close(time.Minute))
}
