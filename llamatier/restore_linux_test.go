package llamatier

import (
	"context"
	"math"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/rates"
)

// gate is a store whose reads from a position on hang, fail, or pass.
type gate struct {
	*diskstore.Store
	from uint32
	late chan time.Time // receives the time when nothing but a read that hangs is awaited
	err  error          // of the reads, nil lets them hang
}

func newGate(s *diskstore.Store, from uint32) *gate {
	return &gate{Store: s, from: from, late: make(chan time.Time, 20)}
}

// after is the clock of a Tier before the gate.
func (g *gate) after(time.Duration) <-chan time.Time { return g.late }

func (g *gate) Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) error {
	switch {
	case ref.Start < g.from:
		return g.Store.Read(ctx, ref, tokens, layout, into)
	case g.err != nil:
		return g.err
	}
	// The first page is read alone; others begin when the page engine.PagesAtOnce before was used.
	if last := g.from + (engine.PagesAtOnce-1)*testPage; g.from == 0 || ref.Start == last {
		g.late <- time.Now()
	}
	<-ctx.Done()
	return ctx.Err()
}

// stored begins with a store that has a conversation of 200 tokens, and an empty engine.
func stored(t *testing.T) *world {
	w := newWorld(t, 1, 1000)
	require.Zero(t, w.ask(ask(prompt(1, 200)), 5))
	w.killed()
	return w
}

// TestPagesThatHangAreComputed, and those before them are used.
func TestPagesThatHangAreComputed(t *testing.T) {
	for from, want := range map[uint32]int{0: 0, testPage: 0, 6 * testPage: 6 * testPage} { // one page is fewer than restoreMin
		w := stored(t)
		g := newGate(w.store, from)
		w.restart(func(o *Options) { o.Store, o.After = g, g.after })
		require.Equal(t, want, w.ask(ask(prompt(1, 300)), 5), "from %d", from)
		require.Equal(t, want, w.engine.restored)

		w.tier.Flush(t.Context())
		require.Empty(t, w.tier.saver.saving)
	}
}

// TestAllDamagedPagesAreFound: a conversation with many damaged pages is computed once, and stored
// again as a whole. A page that nobody has read counts as stored.
func TestAllDamagedPagesAreFound(t *testing.T) {
	w := stored(t)
	damaged := w.pageFiles()
	require.GreaterOrEqual(t, len(damaged), 200/testPage)
	for _, path := range damaged {
		require.NoError(t, os.Truncate(path, 5000))
	}

	require.Zero(t, w.ask(ask(prompt(1, 200)), 5))
	w.killed()
	require.Equal(t, 200, w.ask(ask(prompt(1, 200)), 5))
	w.tier.Flush(t.Context())
}

// TestARestoreWithoutRoom: with one cache for all slots, as many of them are emptied as a restore
// needs, those that were idle for longest, and they are saved before.
func TestARestoreWithoutRoom(t *testing.T) {
	w := newWorld(t, 4, 1000)
	w.ask(ask(prompt(9, 200)), 5)
	w.killed()
	w.engine.room = 1000
	for seed := range 3 {
		w.ask(ask(prompt(seed, 300)), 5)
	}
	require.Equal(t, 200/testPage*testPage+8, w.ask(ask(prompt(9, 250)), 5))
	require.Empty(t, w.engine.slots[0].tokens)
	require.NotEmpty(t, w.engine.slots[1].tokens)
	require.NotEmpty(t, w.engine.slots[2].tokens)
	w.tier.storing.Wait()
	require.Equal(t, 300, w.ask(ask(prompt(0, 310)), 5), "another slot is emptied for it")
	require.Empty(t, w.engine.slots[1].tokens)
	w.idle()
}

// TestDraftsBeginWhereAFileEnds, and not where another conversation's ended, in the same slot.
func TestDraftsBeginWhereAFileEnds(t *testing.T) {
	w := (&world{t: t, drafts: true}).start(1, 1000)
	w.ask(ask(prompt(1, 200)), 5)
	w.ask(ask(prompt(2, 90)), 5) // the slot is saved before
	require.Equal(t, 200, w.ask(ask(prompt(1, 300)), 5))
	w.engine.refuseNext("/slots/0?action=erase", 1)
	require.Zero(t, w.ask(ask(prompt(2, 120)), 5), "what cannot be erased is not restored")
	w.idle()

	w.start(1, 1000)
	w.engine.onLeave("/slots/0?action=erase", func() { // a request that names no slot
		w.engine.slots[0].complete(w.engine, t.Context(), prompt(3, 50), 2)
	})
	require.Zero(t, w.ask(ask(prompt(1, 300)), 5), "another request ran in between")
	w.ask(ask(prompt(1, 310)), 5)
	require.Equal(t, 300, w.engine.cached, "the slot may be trusted")
	w.idle()
}

// TestTheLastTokensAreComputedForDrafts, which know no restored one. Those of the answer before the next
// question are enough.
func TestTheLastTokensAreComputedForDrafts(t *testing.T) {
	for tokens, want := range map[int]int{200: 200 - draftTokens, 215: 215 - draftTokens, 200 + draftTokens: 200, 300: 200, 90: 0} {
		w := (&world{t: t, drafts: true}).start(1, 1000)
		w.askAndIdle(ask(prompt(1, 200)), 1)
		w.killed()
		require.Equal(t, want, w.ask(ask(prompt(1, tokens)), 5), "%d tokens", tokens)
		require.Equal(t, want, w.engine.cached)
	}
}

// TestPagesThatAreGoneAreComputed, and those before them are used.
func TestPagesThatAreGoneAreComputed(t *testing.T) {
	w := stored(t)
	w.disk().Store = &gate{Store: w.store, from: 6 * testPage, err: os.ErrNotExist}
	require.Equal(t, 6*testPage, w.ask(ask(prompt(1, 300)), 5))
	require.Equal(t, 6*testPage, w.engine.restored)
	require.Equal(t, 6*testPage, w.engine.cached)
	w.idle()

	w.start(1, 1000)
	require.Equal(t, 300, w.ask(ask(prompt(1, 300)), 5), "all pages were stored again, one of them with the answer")
}

// TestPagesThatTakeLongerThanComputing are not read; pages of a slot's conversation are read
// for the tokens behind those that the slot holds.
func TestPagesThatTakeLongerThanComputing(t *testing.T) {
	w := stored(t)
	page := rates.Page{Tokens: testPage, Bytes: fakeShape.RowBytes(testPage, 0), Tier: "local"}
	computes(w.rates, time.Millisecond)
	w.rates.Watch(rates.Chain{Pages: []rates.Page{page}}, 1).Arrived(time.Second)
	g := newGate(w.store, 0)
	w.disk().Store = g
	require.Zero(t, w.ask(ask(prompt(1, 300)), 5))
	require.Zero(t, w.engine.restored)
	<-g.late // a probe reads
	w.tier.storing.Wait()
}

// TestAFileThatCannotBeLoadedInTime: the step of the engine counts, as reading does.
func TestAFileThatCannotBeLoadedInTime(t *testing.T) {
	w := stored(t)
	page := rates.Page{Tokens: testPage, Bytes: fakeShape.RowBytes(testPage, 0), Tier: "local"}
	computes(w.rates, time.Millisecond)
	w.rates.Stepped(rates.Chain{Pages: []rates.Page{page}, Then: loading}, time.Second)
	require.Zero(t, w.ask(ask(prompt(1, 300)), 5))
	require.Zero(t, w.engine.restored)
}

// TestARequestThatEndsDuringARestore leaves no page behind, and the slot as it was.
func TestARequestThatEndsDuringARestore(t *testing.T) {
	w := stored(t)
	ctx, cancel := context.WithCancel(t.Context())
	g := newGate(w.store, 6*testPage)
	w.restart(func(o *Options) { o.Store, o.After = g, func(time.Duration) <-chan time.Time { return nil } })
	go func() {
		<-g.late
		cancel()
	}()
	turn, err := w.tier.Begin(ctx, Request{Tokens: prompt(1, 300), Slot: -1, Cancel: cancel})
	require.NoError(t, err)
	require.Zero(t, turn.restored.tokens)
	require.Zero(t, w.engine.restored)
	turn.End(nil)
	require.ErrorIs(t, ctx.Err(), context.Canceled)
}

// TestARequestBesideARestore may reach the engine when that has begun to read the file, and the Tier waits for
// the restore at the request's end. A request that runs before the Tier has heard of the restore does not
// hold it back.
func TestARequestBesideARestore(t *testing.T) {
	for _, stream := range []bool{false, true} {
		w := stored(t)
		if stream {
			w, _ = streamed(t, false)
		}
		w.tier.patience.look = time.Millisecond
		heard := make(chan struct{})
		w.engine.onLeave("/slots/0?action=restore", func() { <-heard })
		turn := w.begin(ask(prompt(1, 320)))
		slot := w.engine.slots[0]
		slot.use.Lock() // a request runs
		w.engine.requests()
		for looks := 0; looks < 2; looks += w.engine.requests()["/slots"] {
			runtime.Gosched()
		}
		slot.use.Unlock()
		answer := slot.complete(w.engine, t.Context(), prompt(1, 320), 5)
		ended := beside(func() { turn.End(answer) })
		close(heard)
		<-ended
		require.Equal(t, turn.restored.tokens, answer.Cached)
		require.GreaterOrEqual(t, answer.Cached, 200)
		if w.idle(); !stream { // its world has no room for a save
			require.Equal(t, 320, endOf(w.found(prompt(1, 320))))
		}
	}
}

// TestARequestThatIsNotSentAfterARestore leaves its slot with the tokens that were restored.
func TestARequestThatIsNotSentAfterARestore(t *testing.T) {
	w := stored(t)
	heard := make(chan struct{})
	w.engine.onLeave("/slots/0?action=restore", func() { <-heard })
	ended := beside(w.begin(ask(prompt(1, 300))).Drop)
	close(heard)
	<-ended
	require.Zero(t, w.ask(ask(prompt(1, 300)), 5))
	require.Equal(t, 100, w.engine.computed)
}

// TestRestoresThatARequestWaitsFor: more than one action may be needed, or the slot is saved between steps.
func TestRestoresThatARequestWaitsFor(t *testing.T) {
	require.True(t, newWorld(t, 1, 1000).tier.restorer.once())
	require.False(t, newWorld(t, 2, 1000).tier.restorer.once(), "the slots share their room")
	require.False(t, newHybrid(t).tier.restorer.once())
	require.False(t, (&world{t: t, drafts: true}).start(1, 1000).tier.restorer.once())
}

// TestThePriceKnowsTheForm: the bytes of a page are those of its file, the bytes that llama-server
// loads those of its rows.
func TestThePriceKnowsTheForm(t *testing.T) {
	const tokens = 1 << 14 // rows that are large beside a header
	rows := fakeShape.RowBytes(tokens, 0)
	w := newWorld(t, 1, 1000)
	p := &plan{}
	for _, bytes := range []int64{rows + 4096, rows * 5 / 6, rows / 3} {
		p.refs = append(p.refs, diskstore.Ref{Tokens: tokens, Stored: tokens, Tier: "local", Bytes: bytes})
	}
	for i, want := range []rates.Form{rates.Whole, rates.Packed, rates.Quarter} {
		page := w.tier.saver.form.costs(p).Pages[i]
		require.Equal(t, want, page.Form)
		require.InDelta(t, p.refs[i].Bytes, page.Bytes, 4096)
		require.InDelta(t, rows, page.Rows, 4096)
	}

	// The first page of a model with a state ends without one, the second page with one.
	w.hybrid = true
	w.start(1, 1000)
	sections, err := w.tier.saver.form.layout(&plan{}, 0, tokens)
	require.NoError(t, err)
	p.refs = []diskstore.Ref{{Stored: tokens, Bytes: int64(sections.Size()) + 4096}, {Stored: tokens, Bytes: int64(sections.Size()) / 2}}
	for i, want := range []rates.Form{rates.Whole, rates.Half} {
		require.Equal(t, want, w.tier.saver.form.costs(p).Pages[i].Form)
	}
}

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
	w.killed()
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
