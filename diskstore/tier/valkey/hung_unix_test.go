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

// TestHungServer: every wait for a server that is stopped ends with its context.
func TestHungServer(t *testing.T) {
	server, tr, sent := startCounted(t)
	_, _, err := tr.Survey(ctx) // there is a connection
	require.NoError(t, err)
	require.NoError(t, server.Process.Signal(syscall.SIGSTOP))
	for call, do := range calls(tr) {
		soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		require.ErrorIs(t, do(soon), context.DeadlineExceeded, call)
		cancel()
	}
	for call, do := range calls(tr) {
		left, leave := context.WithCancel(ctx)
		before, result := sent.Load(), make(chan error, 1)
		go func() { result <- do(left) }()
		require.Eventually(t, func() bool { return sent.Load() > before }, 10*time.Second, time.Millisecond, call)
		leave()
		select {
		case err := <-result:
			require.ErrorIs(t, err, context.Canceled, call)
		case <-time.After(dialIn / 2): // the client itself waits for dialIn
			require.Fail(t, "an operation goes on without its caller", call)
		}
	}
	require.NoError(t, server.Process.Signal(syscall.SIGCONT))
	_, _, err = tr.Survey(ctx)
	require.NoError(t, err)
}

// TestCloseWhileServerHangs: Close does not wait, and ends the waits for a connection.
func TestCloseWhileServerHangs(t *testing.T) {
	server, tr, sent := startCounted(t)
	up, err := tr.Create(ctx, tiertest.Page(1))
	require.NoError(t, err)
	require.NoError(t, up.Write(ctx, []byte("page")))
	require.NoError(t, server.Process.Signal(syscall.SIGSTOP))
	results := make(chan error, 2*maxConns)
	for range 2 * maxConns {
		go func() { _, _, err := tr.Survey(ctx); results <- err }()
	}
	require.Eventually(t, func() bool { return sent.Load() >= maxConns }, 10*time.Second, time.Millisecond)
	require.NoError(t, tr.Close())
	for range maxConns {
		require.ErrorIs(t, <-results, tier.ErrClosed)
	}
	require.EqualValues(t, maxConns, sent.Load(), "one operation in each connection")
	require.ErrorIs(t, up.Seal(ctx), tier.ErrClosed)
	up.Abort()
	require.NoError(t, server.Process.Signal(syscall.SIGCONT))
	for range maxConns {
		<-results
	}
}
