package llamatier

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// coldStore is a store whose pages from a position on are lossy.
type coldStore struct {
	*diskstore.Store
	from   uint32
	looked int // look-ups of lossy pages
	puts   int
}

func (s *coldStore) Find(ctx context.Context, p diskstore.Prompt) (found diskstore.Found) {
	refs := s.Store.Find(ctx, diskstore.Prompt{Tokens: p.Tokens}).Exact
	for i, ref := range refs {
		if ref.Start < s.from {
			found.Exact = append(found.Exact, ref)
		}
		refs[i].Lossy = ref.Start >= s.from
	}
	if p.Forms == diskstore.ExactFirst {
		s.looked++
		if endOf(refs) >= max(p.Beyond, endOf(found.Exact))+testPage {
			found.Mixed = refs
		}
	}
	return found
}

func (s *coldStore) Put(ctx context.Context, p *pagefile.Page) error {
	s.puts++
	return s.Store.Put(ctx, p)
}

func (s *coldStore) Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) error {
	exact := ref
	exact.Lossy = false
	err := s.Store.Read(ctx, exact, tokens, layout, into)
	if ref.Lossy {
		nearly(into.Rows)
	}
	return err
}

// cooled is a world with a store that has a conversation of 200 tokens, lossy from a position on, and
// an empty engine.
func cooled(t *testing.T, from uint32, lossy bool) (*world, *coldStore) {
	w := stored(t)
	w.lossy = lossy
	w.start(1, 1000)
	w.engine.near = true
	s := &coldStore{Store: w.store, from: from}
	w.disk().Store = s
	return w, s
}

// TestALossyConversation comes back, and nothing of its slot is stored until the slot holds exact rows.
func TestALossyConversation(t *testing.T) {
	w, s := cooled(t, 4*testPage, true)
	require.Equal(t, 200, w.ask(ask(prompt(1, 300)), 5))
	w.tier.why.Wait(time.Minute) // prompts are recorded when they are explained
	_, prompts := w.meter.Read()
	require.Equal(t, 200-4*testPage, prompts[len(prompts)-1].Lossy)
	slot := w.tier.Slots()[0]
	require.True(t, slot.Lossy && slot.Shifted)
	w.idle()
	require.Zero(t, s.puts)
	require.Equal(t, 1, w.engine.requests()["/slots/0"], "the slot was restored, and not saved")

	restored := w.engine.restored
	require.Zero(t, w.ask(ask(prompt(1, 320)), 5), "the slot holds it")
	require.Equal(t, restored, w.engine.restored)
	w.idle()
	require.Zero(t, s.puts)

	require.Zero(t, w.ask(ask(prompt(2, 100)), 5))
	w.idle()
	require.NotZero(t, s.puts)
	require.False(t, w.tier.Slots()[0].Lossy)
}

// TestExactPagesReplaceLossyRows of a slot, which is stored again then.
func TestExactPagesReplaceLossyRows(t *testing.T) {
	w, s := cooled(t, 4*testPage, true)
	require.Equal(t, 200, w.ask(ask(prompt(1, 210)), 5))
	s.from, w.engine.near = math.MaxUint32, false
	w.ask(ask(prompt(1, 300)), 5)
	require.False(t, w.tier.Slots()[0].Lossy)
	w.idle()
	require.NotZero(t, s.puts)
}

// TestExactPagesReplaceLossyRowsOfASlot also where lossy pages reach further, but not so far that they
// alone would be worth replacing the slot.
func TestExactPagesReplaceLossyRowsOfASlot(t *testing.T) {
	w, s := cooled(t, math.MaxUint32, true)
	require.Equal(t, 200, w.ask(ask(prompt(1, 240)), 5))
	w.tier.Flush(t.Context())
	w.start(1, 1000)
	w.engine.near = true
	s.from, w.disk().Store = 4*testPage, s
	w.ask(ask(prompt(1, 200)), 5)
	require.True(t, w.tier.Slots()[0].Lossy)
	s.from = 13 * testPage
	require.Equal(t, 13*testPage-200, w.ask(ask(prompt(1, 300)), 5), "that the slot did not hold")
	require.False(t, w.tier.Slots()[0].Lossy)
}

// TestExactPagesComeFirst: lossy ones are used where they go a page further.
func TestExactPagesComeFirst(t *testing.T) {
	w, _ := cooled(t, 200/testPage*testPage, true) // the tail alone is lossy
	require.Equal(t, 200/testPage*testPage, w.ask(ask(prompt(1, 300)), 5))
	require.False(t, w.tier.Slots()[0].Lossy)
}

// TestLossyPagesAreNotLookedUp where nobody asked for them.
func TestLossyPagesAreNotLookedUp(t *testing.T) {
	w, s := cooled(t, 0, false)
	require.Zero(t, w.ask(ask(prompt(1, 300)), 5))
	require.Zero(t, s.looked)
}
