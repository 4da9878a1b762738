//go:build unix

package valkey

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
)

// TestHungServer: every wait for a server that is stopped ends with its context, and Close does not wait.
func TestHungServer(t *testing.T) {
	server, tr := start(t)
	closing := another(t, tr)
	for _, tr := range []*Tier{tr, closing} {
		_, _, err := tr.Survey(ctx) // there is a connection
		require.NoError(t, err)
	}
	require.NoError(t, server.Process.Signal(syscall.SIGSTOP))
	resume := func() { require.NoError(t, server.Process.Signal(syscall.SIGCONT)) }
	defer resume()
	for call, do := range calls(tr) {
		soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		require.ErrorIs(t, do(soon), context.DeadlineExceeded, call)
		cancel()
		left, leave := context.WithCancel(ctx)
		result := make(chan error, 1)
		go func() { result <- do(left) }()
		leave()
		require.ErrorIs(t, <-result, context.Canceled, call)
	}
	up, err := closing.Create(ctx, tiertest.Page(1))
	require.NoError(t, err)
	require.NoError(t, up.Write(ctx, []byte("page")))
	up.Abort()
	require.NoError(t, closing.Close())
	require.ErrorIs(t, up.Seal(ctx), tier.ErrClosed)
	resume()
	for call, do := range calls(tr) {
		if err := do(ctx); call == "Find" || call == "Survey" || call == "Account" {
			require.NoError(t, err, call)
		}
	}
}
