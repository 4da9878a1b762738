package diskstore

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// sources are the ways in which a page is kept.
var sources = map[string]func(*Options){
	"raw":    func(o *Options) {},
	"zstd":   func(o *Options) { o.Compress = true },
	"memory": func(o *Options) { o.RAM.BudgetBytes = 1 << 24 },
}

// Some sections of a page, read alone, equal the same sections read with the whole page, from
// a raw file, a compressed one and memory.
func TestReadSomeSections(t *testing.T) {
	for name, change := range sources {
		t.Run(name, func(t *testing.T) {
			s := open(t, testOptions(t, change))
			tokens := prompt(1, testTokens)
			page := putChain(t, s, tokens)[0]
			ref := s.Find(ctx, Prompt{Tokens: tokens}).Exact[0]
			for some := 1; some < 1<<len(testSections); some++ {
				var wanted []pagefile.Section
				var of []int
				for i, section := range testSections {
					if some&(1<<i) != 0 {
						wanted, of = append(wanted, section), append(of, i)
					}
				}
				l := layoutOf(t, wanted, testTokens)
				buf := make([]byte, l.Size())
				require.NoError(t, s.Read(ctx, ref, tokens, l, Into{Rows: buf}))
				for i := range wanted {
					require.Equal(t, page.Layout.Rows(page.Payload, of[i]), l.Rows(buf, i), "sections %b", some)
					require.Empty(t, bytes.Trim(l.Gap(buf, i), "\x00"))
				}
			}
			if name == "memory" {
				require.Positive(t, s.Stats().RAMHits)
			}
		})
	}
}

// Only reads of a damaged section find its damage.
func TestDamageElsewhereIsNotRead(t *testing.T) {
	s, o := openNew(t, func(o *Options) { o.FS = nil })
	tokens := putPrompt(t, s, 1, testTokens)
	ref := s.Find(ctx, Prompt{Tokens: tokens}).Exact[0]
	path := filePath(o.Local.Root, ref.name(s.pages))
	h, err := tier.ReadHeader(ctx, s.disk, ref.name(s.pages))
	require.NoError(t, err)
	last := len(testSections) - 1
	flipAt(t, path, int(h.Sections[last].Offset))

	first := layoutOf(t, testSections[:last], testTokens)
	require.NoError(t, s.Read(ctx, ref, tokens, first, Into{Rows: make([]byte, first.Size())}))
	whole := layoutOf(t, testSections, testTokens)
	require.ErrorIs(t, s.Read(ctx, ref, tokens, whole, Into{Rows: make([]byte, whole.Size())}), pagefile.ErrDamaged)
}

// stateSections are rows and state.
var stateSections = []pagefile.Section{
	{Kind: pagefile.KindK, RowBytes: 16}, {Kind: pagefile.KindV, RowBytes: 8},
	{Group: 1, Kind: pagefile.KindConv, RowBytes: 40}, {Group: 1, Kind: pagefile.KindState, RowBytes: 5000},
}

// State has one row, for any number of tokens. A page with state replaces a page without, and
// not the other way round.
func TestPagesWithState(t *testing.T) {
	for _, n := range []int{1, testTokens - 1, testTokens} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			s := open(t, testOptions(t))
			tokens := prompt(1, n)
			plain := withSections(t, s.opt.Fingerprint, 0, tokens, stateSections[:2])
			full := withSections(t, s.opt.Fingerprint, 0, tokens, stateSections)
			require.Len(t, full.Layout.Rows(full.Payload, 3), 5000)
			layout := func() pagefile.Layout {
				refs := s.Find(ctx, Prompt{Tokens: tokens}).Exact
				require.Len(t, refs, 1)
				return storedLayout(t, s, refs[0])
			}
			require.NoError(t, s.Put(ctx, plain))
			require.False(t, layout().HasState())
			require.NoError(t, s.Put(ctx, full))
			require.True(t, layout().Equal(full.Layout))
			require.NoError(t, s.Put(ctx, plain))
			require.True(t, layout().Equal(full.Layout))

			require.Equal(t, full.Payload, rowsOf(t, s, s.Find(ctx, Prompt{Tokens: tokens}).Exact[0], full))
		})
	}
}

// Tails with state stay beside longer tails, whose state belongs to another position. Tails
// that a sequence contains are found, the longest first.
func TestTailsWithin(t *testing.T) {
	s := open(t, testOptions(t))
	tokens := prompt(1, testTokens-1)
	for _, n := range []int{2, 3, 4} {
		sections := stateSections
		if n == 3 {
			sections = stateSections[:2]
		}
		require.NoError(t, s.Put(ctx, withSections(t, s.opt.Fingerprint, 0, tokens[:n], sections)))
	}
	other := append(append([]int32{}, tokens[:2]...), 77)
	require.NoError(t, s.Put(ctx, withSections(t, s.opt.Fingerprint, 0, other, stateSections)))

	lengths := func(tokens []int32) (found []int) {
		for _, ref := range tailsWithin(s, Prompt{Tokens: tokens}) {
			require.Equal(t, ref.Tokens, ref.Stored)
			found = append(found, ref.Tokens)
		}
		return found
	}
	require.Equal(t, []int{4, 2}, lengths(tokens), "tails of rows alone were removed when a longer tail came")
	require.Equal(t, []int{2}, lengths(tokens[:3]))
	require.Empty(t, lengths(tokens[:1]))
	require.Equal(t, []int{3, 2}, lengths(other))
	require.Empty(t, tailsWithin(s, Prompt{Tokens: tokens, Media: []pagefile.Media{{Offset: 1}}}))
	require.NoError(t, s.Close())
	require.Zero(t, s.Find(ctx, Prompt{Tokens: tokens, State: anywhere}))
}

// A longer tail replaces no tail with rows that it lacks.
func TestTailWithFewerSections(t *testing.T) {
	s := open(t, testOptions(t))
	tokens := prompt(1, testTokens-1)
	for n, sections := range map[int][]pagefile.Section{3: testSections, 2: testSections[:1]} {
		require.NoError(t, s.Put(ctx, withSections(t, s.opt.Fingerprint, 0, tokens[:n], sections)))
	}
	require.NoError(t, s.Put(ctx, withSections(t, s.opt.Fingerprint, 0, tokens[:4], testSections[:1])))
	var lengths []int
	for _, ref := range tailsWithin(s, Prompt{Tokens: tokens}) {
		lengths = append(lengths, ref.Stored)
	}
	require.Equal(t, []int{4, 3}, lengths)
}

// readSections returns the sections that Read passes on, one after the other.
func readSections(s *Store, ref Ref, tokens []int32, l pagefile.Layout, gently bool) ([]byte, error) {
	buf := make([]byte, l.Size())
	var mu sync.Mutex
	err := s.Read(ctx, ref, tokens, l, Into{Gently: gently, Use: func(i int, rows []byte) error {
		mu.Lock()
		defer mu.Unlock()
		copy(l.Rows(buf, i), rows)
		return nil
	}})

	return buf, err
}

// TestReadSections gives the rows that Read gives, also gently: from a raw file, a compressed one, memory, and
// the remote tier after damage in the local one.
func TestReadSections(t *testing.T) {
	for name, change := range sources {
		t.Run(name, func(t *testing.T) {
			s, o := openNew(t, func(o *Options) { o.FS = nil }, change)
			tokens := prompt(1, testTokens)
			page := putChain(t, s, tokens)[0]
			ref := s.Find(ctx, Prompt{Tokens: tokens}).Exact[0]
			for _, gently := range []bool{false, true} {
				got, err := readSections(s, ref, tokens, page.Layout, gently)
				require.NoError(t, err)
				require.Equal(t, page.Payload, got)
				rows := make([]byte, len(got))
				require.NoError(t, s.Read(ctx, ref, tokens, page.Layout, Into{Rows: rows, Gently: gently}))
				require.Equal(t, got, rows)
			}
			_, err := readSections(s, ref, tokens[1:], page.Layout, false)
			require.ErrorIs(t, err, pagefile.ErrInvalidPage)
			if name == "memory" {
				require.Positive(t, s.Stats().RAMHits)
				return
			}
			h, err := tier.ReadHeader(ctx, s.disk, ref.name(s.pages))
			require.NoError(t, err)
			flipAt(t, filePath(o.Local.Root, ref.name(s.pages)), int(h.Sections[1].Offset))
			_, err = readSections(s, ref, tokens, page.Layout, name == "zstd")
			require.ErrorIs(t, err, pagefile.ErrDamaged)
			require.NoError(t, s.Close())
			_, err = readSections(s, ref, tokens, page.Layout, false)
			require.ErrorIs(t, err, tier.ErrClosed)
		})
	}
}

// TestAnErrorOfTheUserIsNoneOfTheStore: it does not count against the file or the tier, and the store
// does not read the file again, also if the error looks like one of the disk.
func TestAnErrorOfTheUserIsNoneOfTheStore(t *testing.T) {
	for _, refused := range []error{errors.New("no such cell"), syscall.EIO, pagefile.ErrDamaged, tier.ErrStale, tier.ErrNotFound, tier.ErrTierTimeout} {
		for _, budget := range []int64{0, 1 << 24} {
			s := open(t, testOptions(t, func(o *Options) { o.RAM.BudgetBytes = budget }))
			tokens := prompt(1, testTokens)
			page := putChain(t, s, tokens)[0]
			ref := s.Find(ctx, Prompt{Tokens: tokens}).Exact[0]
			for _, placed := range []*Placed{nil, new(Placed)} {
				var once sync.Once
				err := s.Read(ctx, ref, tokens, page.Layout, Into{Placed: placed, Use: func(int, []byte) (err error) {
					once.Do(func() { err = fmt.Errorf("a spill's file: %w", refused) })
					return err
				}})
				require.ErrorIs(t, err, refused)
			}
			stats := s.Stats()
			require.Zero(t, stats.TierErrors+stats.Damaged+stats.Mismatched+stats.Misses, "%v", refused)
			got, err := readSections(s, ref, tokens, page.Layout, false)
			require.NoError(t, err)
			require.Equal(t, page.Payload, got)
		}
	}
}
