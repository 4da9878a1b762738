package modelnames

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCacheFindsANewModel: the name of a model that was made after the names were read is there
// without the wait for the next turn. Weights without a name cause one more read.
func TestCacheFindsANewModel(t *testing.T) {
	names := make(chan Names)
	var c Cache
	require.Empty(t, c.Name("before"), "nobody reads yet")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Refresh(ctx, func() Names { return <-names })
	}()
	names <- Names{"old": {"old:latest"}}
	for c.Name("old") == "" {
		runtime.Gosched()
	}
	if c.Name("new") == "" { // the look at the old one may have asked already
		names <- Names{"old": {"old:latest"}, "new": {"new:latest"}}
	}
	for c.Name("new") == "" {
		runtime.Gosched()
	}
	cancel()
	close(names)
	<-ended
}
