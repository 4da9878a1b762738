package ollamatest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWaitLog(t *testing.T) {
	s := startFake(t, fakePlain)
	ctx := testContext(t)
	require.NoError(t, s.WaitLog(ctx, "Listening on"), "earlier output counts")

	mark := s.LogMark()
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.WaitLogFrom(short, mark, "Listening on"), context.DeadlineExceeded)

	require.NoError(t, s.Restart(ctx))
	require.NoError(t, s.WaitLogFrom(ctx, mark, "Listening on"))
}

func TestWaitLogSeesTextSplitOverWrites(t *testing.T) {
	s := &Server{logs: NewLog(nil), process: &Process{Drained: make(chan struct{})}}
	found := make(chan error)
	go func() { found <- s.WaitLog(testContext(t), "needle") }()
	for _, piece := range []string{"hay nee", "d", "le hay"} {
		_, err := s.logs.Write([]byte(piece))
		require.NoError(t, err)
	}
	require.NoError(t, <-found)
}

func TestWaitLogEndsWithTheServer(t *testing.T) {
	s := startFake(t, fakePlain)
	waited := make(chan error)
	go func() { waited <- s.WaitLog(testContext(t), "never printed") }()
	require.NoError(t, s.Stop())
	require.ErrorContains(t, <-waited, "the server ended")
}

func TestLogTail(t *testing.T) {
	l := NewLog(nil)
	_, err := l.Write([]byte("one\ntwo\nthree\n"))
	require.NoError(t, err)
	require.Equal(t, "two\nthree", l.Tail(2))
	require.Equal(t, "one\ntwo\nthree", l.Tail(9))
}
