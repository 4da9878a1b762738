package work

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
