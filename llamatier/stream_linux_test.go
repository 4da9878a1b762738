package llamatier

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/llamastate"
)

// TestDivision: parts follow each other, are not larger than they may be unless they cannot be
// divided, and have each section of each page once.
func TestDivision(t *testing.T) {
	span := func(layer int, offset, size, row int64, end bool) llamastate.Span {
		return llamastate.Span{Section: pagefile.Section{Layer: uint16(layer)}, Offset: offset, Size: size, Row: row, End: end}
	}
	starts := []int{0, 4, 8, 10} // two pages and a tail
	spans := []llamastate.Span{
		span(0, 20, 20, 2, false), span(1, 50, 20, 2, false), // together
		span(2, 160, 100, 10, false), // by pages
		span(3, 270, 100, 0, false),  // by column
		span(4, 380, 5, 0, true), span(5, 390, 5, 0, true),
	}
	parts := divide(spans, 400, starts, 80)
	type row struct{ layer, page int }
	var rows []row
	at := int64(0)
	for _, p := range parts {
		require.Equal(t, at, p.from)
		at = p.to
		for page := p.first; page < p.end; page++ {
			sections := p.sections
			if page == 2 {
				sections = p.ends
			}
			for _, sec := range sections {
				rows = append(rows, row{int(sec.Layer), page})
			}
		}
	}
	var ends []int64
	for _, p := range parts {
		ends = append(ends, p.to)
	}
	require.Equal(t, []int64{70, 240, 260, 370, 400}, ends)
	slices.SortFunc(rows, func(a, b row) int { return (a.layer-b.layer)*10 + a.page - b.page })
	require.Equal(t, []row{
		{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}, {1, 2}, {2, 0}, {2, 1}, {2, 2}, {3, 0}, {3, 1}, {3, 2}, {4, 2}, {5, 2},
	}, rows)
}

// streamed stores a conversation, and begins with an engine that gets streams. The next prompt of
// the conversation has 10 tokens more than are stored.
func streamed(t *testing.T, hybrid bool) (w *world, next []int32) {
	w = &world{t: t, hybrid: hybrid, stream: true}
	w.start(1, 1000)
	if !w.files.Streams() {
		t.Skip("FUSE cannot be used")
	}
	w.ask(ask(prompt(1, 300)), 5)
	next = slices.Concat(w.engine.slots[0].tokens, prompt(2, 10))
	w.killed()
	w.available, w.free = 100, 0
	return w, next
}

// TestARestoreWithoutAFile: there is room for a file nowhere.
func TestARestoreWithoutAFile(t *testing.T) {
	for _, hybrid := range []bool{false, true} {
		w, next := streamed(t, hybrid)
		require.Equal(t, len(next)-10, w.ask(ask(next), 5))
		require.Equal(t, 10, w.engine.computed)
		require.Empty(t, w.slotFiles())
		w.tier.Flush(t.Context())
	}
}

// TestPagesOfSlowTiersAreNoStream: llama-server would wait for them.
func TestPagesOfSlowTiersAreNoStream(t *testing.T) {
	w, next := streamed(t, false)
	p := w.tier.restorer.planner.plan(t.Context(), Tenant{}, next, nil, 0, 0)
	require.True(t, w.tier.restorer.loader.streams(p))
	p.refs[2].Tier = tier.Remote
	require.False(t, w.tier.restorer.loader.streams(p))
	p.refs[2].Tier = tier.RAM
	require.True(t, w.tier.restorer.loader.streams(p))
	w.available = 1 << 30
	require.False(t, w.tier.restorer.loader.streams(p), "a small file is in memory")
}

// TestAStreamThatBreaksOff: the engine refuses the restore, and computes the prompt.
func TestAStreamThatBreaksOff(t *testing.T) {
	for _, hybrid := range []bool{false, true} {
		for name, fault := range map[string]func(w *world, g *gate){
			"damaged": func(_ *world, g *gate) { g.err = pagefile.ErrDamaged },
			"late":    func(w *world, _ *gate) { w.tier.patience.part = time.Millisecond },
		} {
			t.Run(name, func(t *testing.T) {
				w, next := streamed(t, hybrid)
				g := newGate(w.store, 6*testPage)
				w.disk().Store = g
				fault(w, g)
				require.Zero(t, w.ask(ask(next), 5))
				require.Zero(t, w.engine.restored)
				require.Equal(t, len(next), w.engine.computed)
				w.tier.storing.Wait()
				w.disk().Store = w.store
				w.tier.Flush(t.Context())
			})
		}
	}
}

// slow is a store whose reads wait until all of them may end. A read is known by its page and
// sections.
type slow struct {
	*diskstore.Store
	began chan string
	end   chan struct{}
}

func (s *slow) Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) error {
	s.began <- fmt.Sprint(ref.Start, layout)
	<-s.end
	return s.Store.Read(ctx, ref, tokens, layout, into)
}

// TestReadersOfAStream: of two readers in different parts, each gets its bytes, and no page is
// read again for the other one's sake.
func TestReadersOfAStream(t *testing.T) {
	w, next := streamed(t, false)
	p := w.tier.restorer.planner.plan(t.Context(), Tenant{}, next, nil, 0, 0)
	whole, err := w.tier.restorer.loader.newStream(t.Context(), p)
	require.NoError(t, err)
	want := make([]byte, whole.Size())
	_, err = whole.ReadAt(want, 0)
	require.NoError(t, err)
	require.NoError(t, whole.Close())

	slow := &slow{Store: w.store, began: make(chan string, 1000), end: make(chan struct{})}
	w.disk().Store = slow
	s, err := w.tier.restorer.loader.newStream(t.Context(), p)
	require.NoError(t, err)
	require.Greater(t, len(s.parts), 6)
	seen := make(map[string]int)
	var readers errgroup.Group
	for _, part := range []int{0, 3} {
		readers.Go(func() error {
			buf := make([]byte, 100)
			off := s.parts[part].from
			if _, err := s.ReadAt(buf, off); err != nil {
				return err
			}
			if !bytes.Equal(want[off:off+100], buf) {
				return fmt.Errorf("other bytes at %d", off)
			}
			return nil
		})
		for range 2 * engine.PagesAtOnce { // of the part and the next one
			seen[<-slow.began]++
		}
	}
	close(slow.end)
	require.NoError(t, readers.Wait())
	w.tier.storing.Wait()
	require.NoError(t, s.Close())
	close(slow.began)
	for read := range slow.began {
		seen[read]++
	}
	for read, times := range seen {
		require.Equal(t, 1, times, read)
	}
	w.disk().Store = w.store
	w.tier.Flush(t.Context())
}

// forgetful is a store from which a page is removed after somebody has looked.
type forgetful struct {
	*diskstore.Store
	looks int // after which it is gone
}

func (s *forgetful) Has(key pagefile.Key) bool {
	s.looks--
	return s.looks >= 0 && s.Store.Has(key)
}

// TestRowsThatAreStoredAreDropped: a save takes room for the new ones only.
func TestRowsThatAreStoredAreDropped(t *testing.T) {
	for _, hybrid := range []bool{false, true} {
		for _, forgotten := range []bool{false, true} {
			w, next := streamed(t, hybrid)
			w.ask(ask(next), 5)
			if forgotten {
				w.disk().Store = &forgetful{w.store, len(next)/testPage - 1}
			}
			held := slices.Clone(w.engine.slots[0].tokens)
			w.free = 2 * fakeShape.RowBytes(80, 0)
			w.tier.Flush(t.Context())
			w.disk().Store = w.store

			w.start(1, 1000)
			w.available = 1 << 30
			restored := w.ask(ask(append(slices.Clone(held), 1, 2)), 5) // the engine requires that each row is right
			if forgotten {
				require.Less(t, restored, len(held))
			} else {
				require.Equal(t, len(held), restored)
			}
		}
	}
}
