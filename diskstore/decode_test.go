package diskstore

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
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
	l := layoutOf(t, largeSections(), testTokens)
	p := &pagefile.Page{Parent: s.opt.Fingerprint, Tokens: prompt(1, testTokens), Layout: l, Payload: make([]byte, l.Size())}
	fillRows(l, p.Key(), p.Payload)
	require.NoError(t, s.Put(ctx, p))
	refs := s.Find(ctx, Prompt{Tokens: p.Tokens}).Exact
	require.Len(t, refs, 1)
	return p, refs[0]
}

func headerAt(t testing.TB, s *Store, ref Ref) *pagefile.Header {
	t.Helper()
	h, err := inspect.Header(vfs.OS, filePath(s.opt.Local.Root, ref.name(s.pages)))
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
		good, err := os.ReadFile(path)
		require.NoError(t, err)
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
		require.NoError(t, s.Read(ctx, ref, p.Tokens, p.Layout, Into{Rows: buf}))
		require.Equal(t, p.Payload, buf)
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
		inj := vfs.Inject(quickFS)
		s := open(t, testOptions(t, withFS(inj)))
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
		inj := vfs.Inject(quickFS)
		s := open(t, testOptions(t, withFS(inj), func(o *Options) { o.Compress = compress }))
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
		readRefLarge(t, s, p, ref)
	}
}

func readRefLarge(t testing.TB, s *Store, p *pagefile.Page, ref Ref) {
	t.Helper()
	buf := make([]byte, p.Layout.Size())
	require.NoError(t, s.Read(ctx, ref, p.Tokens, p.Layout, Into{Rows: buf}))
	require.Equal(t, p.Payload, buf)
}
