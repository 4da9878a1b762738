package diskstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/internal/checked"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// largeSections make a page of several pieces: a piece of many sections, a piece of a single
// section, and a piece of the remaining sections.
func largeSections() []pagefile.Section {
	var sections []pagefile.Section
	for layer := range uint16(4) {
		sections = append(sections,
			pagefile.Section{Layer: layer, Kind: pagefile.KindK, RowBytes: 60_000},
			pagefile.Section{Layer: layer, Kind: pagefile.KindV, RowBytes: 65_003})
	}
	sections[4].RowBytes = (1<<20)/testTokens + 13 // more than one read
	return sections
}

// putLarge stores a page of several pieces and returns it with its ref.
func putLarge(t testing.TB, s *Store) (*pagefile.Page, Ref) {
	t.Helper()
	p := withSections(t, s.opt.Fingerprint, 0, prompt(1, testTokens), largeSections())
	require.NoError(t, s.Put(ctx, p))
	refs := s.Find(ctx, Prompt{Tokens: p.Tokens}).Exact
	require.Len(t, refs, 1)
	return p, refs[0]
}

func headerAt(t testing.TB, s *Store, ref Ref) *pagefile.Header {
	t.Helper()
	h, _, err := inspect.ReadHeader(ctx, vfs.OS, filePath(s.opt.Local.Root, ref.name(s.pages)), false)
	require.NoError(t, err)
	return h
}

// TestDamageInAnyPieceIsFound flips a bit at either end of every section, in the padding after
// the section, and in the footer.
func TestDamageInAnyPieceIsFound(t *testing.T) {
	for _, compress := range []bool{false, true} {
		s := open(t, testOptions(t, func(o *Options) { o.Compress = compress }))
		p, ref := putLarge(t, s)
		h := headerAt(t, s, ref)
		path := filePath(s.opt.Local.Root, ref.name(s.pages))
		good := fileOf(t, path)
		places := []int64{h.FileBytes - 1, h.FileBytes - pagefile.FooterBytes}
		for _, section := range h.Sections {
			end := section.Offset + section.Stored
			places = append(places, section.Offset, end-1)
			if pagefile.AlignUp(end) > end {
				places = append(places, end, pagefile.AlignUp(end)-1)
			}
		}
		buf := make([]byte, p.Layout.Size())
		for _, at := range places {
			bad := slices.Clone(good)
			bad[at] ^= 1 << rand.IntN(8)
			require.NoError(t, os.WriteFile(path, bad, 0o600))
			require.ErrorIs(t, s.Read(ctx, ref, p.Tokens, p.Layout, Into{Rows: buf}), pagefile.ErrDamaged, "byte %d", at)
			require.NoFileExists(t, path, "the page is in quarantine")
			makeTrusted(t, s)
		}
		require.NoError(t, os.WriteFile(path, good, 0o600))
		require.Equal(t, p.Payload, rowsOf(t, s, ref, p))
	}
}

// makeTrusted empties a local quarantine and resets the store's number of condemned files, as
// after a repair and an hour without damage.
func makeTrusted(t *testing.T, s *Store) {
	t.Helper()
	_, err := s.disk.EmptyQuarantine(ctx)
	require.NoError(t, err)
	s.local.checked.Bad = checked.NewBadFiles(false, time.Now)
}

// TestAnErrorInAnyPieceFailsTheRead makes every single read of a page fail in turn.
func TestAnErrorInAnyPieceFailsTheRead(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EINTR, syscall.EAGAIN} {
		s, _, inj := openInjected(t)
		p, ref := putLarge(t, s)
		buf := make([]byte, p.Layout.Size())
		for nth := 1; ; nth++ {
			inj.Reset()
			inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRead}, Nth: nth, Err: errno})
			err := s.Read(ctx, ref, p.Tokens, p.Layout, Into{Rows: buf})
			if nth > inj.Count(vfs.OpRead) {
				require.NoError(t, err)
				require.Greater(t, nth, 4, "header, footer and several pieces")
				break
			}
			require.ErrorIs(t, err, errno)
		}
		require.Equal(t, p.Payload, buf)
		require.Zero(t, s.Stats().Damaged, "an error is not damage")
	}
}

// A cancelled read has returned only when no goroutine writes to the caller's buffer any more:
// the race detector would report such a write.
func TestCancelledReadLeavesTheBufferAlone(t *testing.T) {
	for _, compress := range []bool{false, true} {
		gate := vfs.NewGate()
		s, _, inj := openInjected(t, func(o *Options) { o.Compress = compress })
		p, ref := putLarge(t, s)
		inj.Reset()
		inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRead}, Nth: 3, Gate: gate}) // after the header's and one more
		cancelable, cancel := context.WithCancel(ctx)
		buf := make([]byte, p.Layout.Size())
		failed := make(chan error, 1)
		go func() { failed <- s.Read(cancelable, ref, p.Tokens, p.Layout, Into{Rows: buf}) }()
		<-gate.Entered()
		cancel()
		gate.Open()
		if err := <-failed; err != nil {
			require.ErrorIs(t, err, context.Canceled)
		}
		for i := range buf {
			buf[i] = 0x55
		}
		require.Zero(t, s.Stats().Damaged)
		require.Equal(t, p.Payload, rowsOf(t, s, ref, p))
	}
}

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
	require.ErrorIs(t, readError(t, s, ref, other), pagefile.ErrMismatch)
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
