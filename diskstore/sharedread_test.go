package diskstore

import (
	"context"
	"errors"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// startRead reads a page of a chain in the background.
func startRead(ctx context.Context, t *testing.T, s *Store, ref Ref, tokens []int32) (buf []byte, done chan error) {
	l := layoutOf(t, testSections, ref.Stored)
	buf, done = make([]byte, l.Size()), make(chan error, 1)
	go func() { done <- s.Read(ctx, ref, tokens[ref.Start:int(ref.Start)+ref.Tokens], l, Into{Rows: buf}) }()
	return buf, done
}

// joined waits until n Reads wait for a Read of the same page.
func joined(t *testing.T, s *Store, ref Ref, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		s.reader.sharing.mu.Lock()
		defer s.reader.sharing.mu.Unlock()
		return s.reader.sharing.reading[ref.name(s.pages)].waiting == n
	}, time.Minute, time.Millisecond)
}

// hangingRead returns a store with a page of tokens, in whose file one reader hangs, and the
// gate that ends the hang: with the error fail unless it is nil.
func hangingRead(t *testing.T, fail error) (s *Store, inj *vfs.Injector, tokens []int32, ref Ref, gate *vfs.Gate) {
	inj = vfs.Inject(quickFS)
	s = open(t, testOptions(t, withFS(inj)))
	tokens = prompt(1, testTokens)
	putChain(t, s, tokens)
	ref = s.Find(ctx, Prompt{Tokens: tokens}).Exact[0]
	gate = vfs.NewGate()
	inj.Add(vfs.Rule{Path: regexp.MustCompile(ref.Key.String()), Ops: []vfs.Op{vfs.OpRead}, Gate: gate, Err: fail})
	return s, inj, tokens, ref, gate
}

// Concurrent Reads of one page open its file once, and each returns the page.
func TestReadsOfOnePageShareOne(t *testing.T) {
	s, inj, tokens, ref, gate := hangingRead(t, nil)
	first, firstDone := startRead(ctx, t, s, ref, tokens)
	<-gate.Entered()
	opened := inj.Count(vfs.OpOpen)
	var bufs [][]byte
	var done []chan error
	for range 3 {
		buf, d := startRead(ctx, t, s, ref, tokens)
		bufs, done = append(bufs, buf), append(done, d)
	}
	joined(t, s, ref, 3)
	gate.Open()
	require.NoError(t, <-firstDone)
	want := make([]byte, len(first))
	fillRows(layoutOf(t, testSections, testTokens), ref.Key, want)
	require.Equal(t, want, first)
	for i := range bufs {
		require.NoError(t, <-done[i])
		require.Equal(t, want, bufs[i])
	}
	require.Equal(t, opened, inj.Count(vfs.OpOpen))
	require.EqualValues(t, 4, s.Stats().Hits)
	require.EqualValues(t, 3, s.Stats().SharedHits)
	readChain(t, s, tokens, len(tokens))
	require.EqualValues(t, 3, s.Stats().SharedHits, "a later Read reads the page itself")
}

// After a Read that fails, or is given up, the waiting Reads read the page themselves.
func TestReadsDoNotShareFailures(t *testing.T) {
	for _, fail := range []error{nil, errors.New("lost")} {
		s, inj, tokens, ref, gate := hangingRead(t, fail)
		givenUp, cancel := context.WithCancel(ctx)
		_, firstDone := startRead(givenUp, t, s, ref, tokens)
		<-gate.Entered()
		_, done := startRead(ctx, t, s, ref, tokens)
		joined(t, s, ref, 1)
		cancel()
		inj.Reset()
		gate.Open()
		require.Error(t, <-firstDone)
		require.NoError(t, <-done)
		require.Zero(t, s.Stats().SharedHits)
	}
}

// A waiting Read ends with its context, and delays no other Read.
func TestWaitingReadEndsWithItsContext(t *testing.T) {
	s, _, tokens, ref, gate := hangingRead(t, nil)
	_, firstDone := startRead(ctx, t, s, ref, tokens)
	<-gate.Entered()
	waiting, cancel := context.WithCancel(ctx)
	_, done := startRead(waiting, t, s, ref, tokens)
	joined(t, s, ref, 1)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	gate.Open()
	require.NoError(t, <-firstDone)
}

// A Read with other tokens for the same file does not get the shared result.
func TestReadsOfOtherTokensAreNotShared(t *testing.T) {
	s, inj, tokens, ref, gate := hangingRead(t, nil)
	_, firstDone := startRead(ctx, t, s, ref, tokens)
	<-gate.Entered()
	inj.Reset()
	other := append([]int32{}, tokens...)
	other[3]++
	l := layoutOf(t, testSections, testTokens)
	require.ErrorIs(t, s.Read(ctx, ref, other, l, Into{Rows: make([]byte, l.Size())}), pagefile.ErrMismatch)
	gate.Open()
	require.NoError(t, <-firstDone)
}

// Many readers of few pages, for the race detector.
func TestSharedReadsAtRandom(t *testing.T) {
	s := open(t, testOptions(t))
	tokens := putPrompt(t, s, 1, 4*testTokens+3)
	var readers sync.WaitGroup
	for range 8 {
		readers.Add(1)
		go func() {
			defer readers.Done()
			for range 20 {
				readChain(t, s, tokens, len(tokens))
			}
		}()
	}
	readers.Wait()
	require.EqualValues(t, 8*20*5, s.Stats().Hits)
}
