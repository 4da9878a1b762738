//go:build unix

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestANewDaemonWaitsForTheLast, and not for others that have only begun.
func TestANewDaemonWaitsForTheLast(t *testing.T) {
	dir := t.TempDir()
	open := func() *ending {
		e, err := openEnding(dir)
		require.NoError(t, err)
		return e
	}
	first, second, next := open(), open(), open()
	next.wait(time.Hour) // nobody flushes
	first.hold()
	second.hold() // together with the first
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		next.wait(time.Hour)
	}()
	require.NoError(t, first.file.Close())
	select {
	case <-waited:
		require.Fail(t, "the second still flushes")
	default:
	}
	require.NoError(t, second.file.Close()) // as the end of a process does
	<-waited

	first = open()
	first.hold()
	next.wait(0) // gives up
	require.NoError(t, first.file.Close())
	require.NoError(t, next.file.Close())
}
