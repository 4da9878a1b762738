package move

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// TestAPageMovesAlone: a page that moves down while it is written through waits for that, and others do not.
func TestAPageMovesAlone(t *testing.T) {
	var b Mover
	page := pagefile.Name{Key: pagefile.Key{1}}
	leave, err := b.alone(t.Context(), page)
	require.NoError(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = b.alone(ended, page)
	require.ErrorIs(t, err, context.Canceled)
	other, err := b.alone(ended, pagefile.Name{Key: pagefile.Key{2}})
	require.NoError(t, err)
	other()
	next := make(chan error, 1)
	go func() {
		leave, err := b.alone(t.Context(), page)
		if err == nil {
			leave()
		}
		next <- err
	}()
	leave()
	require.NoError(t, <-next)
	require.Empty(t, b.moving)
}

// TestLater: the time to the next attempt grows from failure to failure, up to a minute, and begins anew with a page
// that is done.
func TestLater(t *testing.T) {
	var through Through
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		require.Equal(t, want*time.Second, through.later())
	}
	through.done(pagefile.Name{})
	require.Equal(t, throughSoon, through.later())
}
