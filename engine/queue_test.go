package engine

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A job that panics ends neither the process nor the jobs behind it.
func TestAJobThatPanics(t *testing.T) {
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	defer slog.SetDefault(before)
	var q Queue
	q.Wait(0) // nothing has run
	ran := 0
	for i := range 4 {
		require.True(t, q.Submit(func() {
			if i%2 == 0 {
				panic(i)
			}
			ran++
		}))
	}
	q.Wait(time.Minute)
	require.Equal(t, 2, ran)
}

// Jobs that wait are bounded in number; they run in order.
func TestJobsAreBounded(t *testing.T) {
	var q Queue
	began, end := make(chan struct{}), make(chan struct{})
	require.True(t, q.Submit(func() { close(began); <-end }))
	<-began
	var order []int
	for i := range JobsMax {
		require.True(t, q.Submit(func() { order = append(order, i) }))
	}
	require.False(t, q.Submit(func() { t.Error("one too many") }))
	close(end)
	q.Wait(time.Minute)
	require.Len(t, order, JobsMax)
	require.IsIncreasing(t, order)
}
