package move

import (
	"context"
	"testing"

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
