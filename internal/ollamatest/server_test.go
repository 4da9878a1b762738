package ollamatest

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStartAndClose(t *testing.T) {
	t.Setenv("OLLAMA_SECRET", "of the account")
	var tee bytes.Buffer
	options := fakeOptions(fakePlain)
	options.Stderr = &tee
	s, err := Start(testContext(t), options)
	require.NoError(t, err)
	pid, home := s.PID(), s.Home()
	require.NotZero(t, pid)
	require.DirExists(t, home)
	require.DirExists(t, s.options.ModelsDir)
	require.Contains(t, s.Logs(), "home "+home+" host 127.0.0.1:0 secret \n", "the account's OLLAMA_ variables stay out")
	require.NotEqual(t, "0", s.URL().Port())

	require.NoError(t, s.Close())
	require.NoError(t, s.Close(), "closing again does nothing")
	require.NoDirExists(t, filepath.Dir(home))
	require.Zero(t, s.PID())
	require.Equal(t, s.Logs(), tee.String())
	requireGone(t, pid)
}

func TestGivenDirIsKept(t *testing.T) {
	options := fakeOptions(fakePlain)
	options.Dir, options.ModelsDir = t.TempDir(), filepath.Join(t.TempDir(), "blobs")
	s, err := Start(testContext(t), options)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.DirExists(t, filepath.Join(options.Dir, "home"))
	require.DirExists(t, options.ModelsDir)
}

func TestStartReportsAServerThatEnds(t *testing.T) {
	_, err := Start(testContext(t), fakeOptions(fakeFails))
	require.ErrorContains(t, err, "exit status 3")
	require.ErrorContains(t, err, "no luck today", "the error quotes the log")
}

func TestStartReportsAServerThatDoesNotAnswer(t *testing.T) {
	options := fakeOptions(fakeHangs)
	options.StartTimeout = 100 * time.Millisecond
	_, err := Start(testContext(t), options)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestStartReportsAMissingBinary(t *testing.T) {
	dir := t.TempDir()
	_, err := Start(testContext(t), Options{Binary: filepath.Join(dir, "ollama"), Dir: dir})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, dir)
}

func TestAddressThatArrivesInPieces(t *testing.T) {
	startFake(t, fakeHalfLines)
}

func TestKillServerTakesTheRunnersAlong(t *testing.T) {
	s := startFake(t, fakePlain)
	runners, err := s.Runners()
	require.NoError(t, err)
	require.Len(t, runners, 1)
	pid := s.PID()

	require.NoError(t, s.KillServer())
	requireGone(t, pid)
	runners, err = s.Runners()
	require.NoError(t, err)
	require.Empty(t, runners)
	require.NoError(t, s.KillServer(), "killing a dead server does nothing")

	require.NoError(t, s.Restart(testContext(t)))
	require.NotEqual(t, pid, s.PID())
}

func TestKillRunner(t *testing.T) {
	s := startFake(t, fakePlain)
	pid := s.PID()
	require.NoError(t, s.KillRunner())
	require.Equal(t, pid, s.PID(), "the server goes on")
	require.ErrorContains(t, s.KillRunner(), "no model is loaded")
}

func TestStopRemovesARunnerLeftBehind(t *testing.T) {
	s := startFake(t, fakeOrphans)
	pid := s.PID()
	require.NoError(t, s.Stop())
	requireGone(t, pid)
}

func TestStopKillsAStubbornServer(t *testing.T) {
	options := fakeOptions(fakeStubborn)
	options.StopTimeout = 50 * time.Millisecond
	s, err := Start(testContext(t), options)
	require.NoError(t, err)
	pid := s.PID()
	require.ErrorContains(t, s.Stop(), "did not stop within 50ms")
	requireGone(t, pid)
	require.NoError(t, s.Close())
}

func TestAnswerThatEndsEarlyIsAnError(t *testing.T) {
	s := startFake(t, fakePlain)
	result, err := s.Generate(testContext(t), Request{Model: "x", Prompt: "y"})
	require.ErrorIs(t, err, errEndedEarly)
	require.Equal(t, "half an ", result.Text)
	require.Positive(t, result.TTFT)
}

func TestKillInTheMiddleOfAnAnswer(t *testing.T) {
	s := startFake(t, fakeHolds)
	ctx := testContext(t)
	answered := make(chan error)
	go func() {
		_, err := s.Generate(ctx, Request{Model: "x", Prompt: "y"})
		answered <- err
	}()
	require.NoError(t, s.WaitLog(ctx, "holding"))
	require.NoError(t, s.KillServer())
	require.ErrorIs(t, <-answered, errEndedEarly)
}

func TestCancelledContextIsAClientThatLeaves(t *testing.T) {
	s := startFake(t, fakeHolds)
	ctx, cancel := context.WithCancel(testContext(t))
	answered := make(chan error)
	go func() {
		_, err := s.Generate(ctx, Request{Model: "x", Prompt: "y"})
		answered <- err
	}()
	require.NoError(t, s.WaitLog(testContext(t), "holding"))
	cancel()
	require.ErrorIs(t, <-answered, context.Canceled)
	require.NoError(t, s.WaitLog(testContext(t), "the client left"))
}

func TestFindBinary(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ollama")
	t.Setenv(BinaryEnv, file)
	_, err := FindBinary()
	require.ErrorContains(t, err, BinaryEnv, "a name that leads nowhere is an error, not a reason to skip")
	require.NotErrorIs(t, err, ErrNoBinary)

	require.NoError(t, os.WriteFile(file, nil, 0o700))
	found, err := FindBinary()
	require.NoError(t, err)
	require.Equal(t, file, found)

	t.Setenv(BinaryEnv, "")
	t.Chdir(t.TempDir())
	_, err = FindBinary()
	require.ErrorIs(t, err, ErrNoBinary)
}

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
