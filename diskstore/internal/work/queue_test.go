package work

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
