package kvcache

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
)

// stuckStore is a store in which reads of some pages never end.
type stuckStore struct {
	*memStore
	mu      sync.Mutex
	stuck   map[int]bool // by number of the page
	entered chan int     // receives the number of each stuck page that is read
	begun   chan int     // receives the number of each page that is read
}

func newStuckStore(t testing.TB) *stuckStore {
	return &stuckStore{memStore: newMemStore(t), stuck: make(map[int]bool), entered: make(chan int, 100), begun: make(chan int, 1000)}
}

func (s *stuckStore) stick(pages ...int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.stuck)
	for _, page := range pages {
		s.stuck[page] = true
	}
}

func (s *stuckStore) Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) error {
	s.mu.Lock()
	n := int(ref.Start) / 8
	stuck := s.stuck[n]
	s.mu.Unlock()
	s.begun <- n
	if stuck {
		s.entered <- n
		<-ctx.Done()
		return ctx.Err()
	}
	return s.memStore.Read(ctx, ref, tokens, layout, into)
}

// decided makes a runner restore only pages that pay, with rates that know nothing yet. decided returns
// a prompt of five pages and one token that the store has and the slot does not.
func (r *fakeRunner) decided() []int32 {
	prompt := tokenRange(1, 41)
	r.leave(prompt)
	r.tiered.gate.Always = false
	r.cost(rates.New())
	r.tiered.device.clock.now = func() time.Time { return time.Time{} } // batches say nothing of their time
	return prompt
}

func decided(t *testing.T) (*fakeRunner, *stuckStore, []int32) {
	store := newStuckStore(t)
	r := newFakeRunner(t, store, 1, 128, Options{})
	return r, store, r.decided()
}

// learn gives rates the time of a token and of a page.
func learn(r *rates.Rates, token, page time.Duration) {
	r.Computed(1000, 0, 1000*token)
	for range 3 {
		r.Watch(rates.Chain{Pages: []rates.Page{{Tokens: 8, Bytes: 1, Tier: "local"}}}, engine.PagesAtOnce).Arrived(page)
	}
}

func TestPagesThatCostMoreThanComputingAreNotRead(t *testing.T) {
	r, store, prompt := decided(t)
	store.stick(0, 1, 2, 3, 4)
	learn(r.tiered.rates, time.Microsecond, time.Hour)
	require.Zero(t, r.load(r.slots[0], prompt, true).Held)
	report := (&telemetry.Source{Meter: r.meter, Fill: r.tiered.Fill}).Report()
	require.Equal(t, 5.0, report.Totals[`ollama_kv_gate_pages_total{decision="compute"}`])
	require.Zero(t, report.Totals[`ollama_kv_gate_pages_total{decision="read"}`])
	require.Zero(t, report.Totals["ollama_kv_restores_given_up_total"], "it was not begun")
	r.drain()
	r.cache.requireRows(t, 0, prompt)
	r.finish(r.slots[0])
}

// A probe that no request waits for finds that a slow tier is quick again.
func TestRefusedTierIsProbedBehindTheRequest(t *testing.T) {
	r, store, prompt := decided(t)
	learn(r.tiered.rates, time.Minute, time.Millisecond)
	r.tiered.rates.Watch(rates.Chain{Pages: []rates.Page{{Tokens: 8, Bytes: 1, Tier: "local"}}}, engine.PagesAtOnce).GaveUp(time.Hour)
	store.reads = 0
	require.Zero(t, r.run(r.slots[0], prompt, nil, true).Held)
	r.tiered.reads.Wait()
	require.Equal(t, engine.PagesAtOnce, store.reads)

	r.run(r.slots[0], tokenRange(2, 9), nil, true)
	require.Equal(t, 40, r.load(r.slots[0], prompt, true).Held)
	r.drain()
	r.cache.requireRows(t, 0, prompt)
}

// giveUp ends the wait for a page as soon as the restore waits for it: a later page is being read
// in the room of the page before. So there must be more pages than that.
func (r *fakeRunner) giveUp(store *stuckStore, page int) {
	store.stick(page)
	due := make(chan time.Time)
	r.tiered.gate.After = func(time.Duration) <-chan time.Time { return due }
	go func() {
		for page > 0 && <-store.begun != page-1+engine.PagesAtOnce {
		}
		for <-store.entered != page {
		}
		due <- time.Time{}
	}()
}

// A page that never arrives is given up, and the pages before it stay.
func TestPageThatDoesNotComeIsGivenUp(t *testing.T) {
	for _, stuck := range []int{0, 1, 2} {
		r, store, prompt := decided(t)
		learn(r.tiered.rates, time.Hour, time.Hour)
		r.giveUp(store, stuck)
		restored := r.load(r.slots[0], prompt, true)
		require.Equal(t, stuck*8, restored.Held)
		require.Equal(t, stuck*8, restored.Tokens)
		totals, _ := r.meter.Read()
		require.Equal(t, 1.0, totals["ollama_kv_restores_given_up_total"])
		require.EqualValues(t, stuck, totals[`ollama_kv_gate_pages_total{decision="read"}`])
		require.EqualValues(t, stuck, totals[moved("local", "slot")])
		require.EqualValues(t, 5-stuck, totals[`ollama_kv_gate_pages_total{decision="compute"}`], "each page is decided about once")
		r.drain()
		r.cache.requireRows(t, 0, prompt)
		r.finish(r.slots[0])
		r.tiered.Close() // with a probe of that page on its way
	}
}

// Where a window makes pages useful only all together, the pages that arrived serve a
// shorter prefix at most.
func TestPageOfAWindowThatDoesNotComeIsGivenUp(t *testing.T) {
	store := newStuckStore(t)
	r := newWindowedRunner(t, store, 1, 128, Options{})
	prompt := r.decided()
	learn(r.tiered.rates, time.Hour, time.Hour)
	r.giveUp(store, 1)
	require.LessOrEqual(t, r.load(r.slots[0], prompt, true).Held, 8)
	r.drain()
	r.model.requireRows(t, 0, prompt)
}

// TestAWindowThatIsGivenUpLeavesNothing: the wait for a page is measured against computing the
// whole prompt, also where the slot holds its beginning.
func TestAWindowThatIsGivenUpLeavesNothing(t *testing.T) {
	deadline := func(start startRunner, base int) time.Duration {
		r := start(t, newMemStore(t), 1, 128, Options{})
		r.tiered.mu.Lock()
		require.True(t, r.tiered.sealer.ready())
		r.tiered.mu.Unlock()
		r.tiered.gate.Always = false
		learn(r.tiered.rates, time.Second, time.Microsecond)
		p := plan{prompt: prompt{tokens: tokenRange(1, 40)}, begin: []int{base, base}[:len(r.tiered.caches.groups)], base: base}
		p.take([]diskstore.Ref{{Start: 32, Tokens: 8, Stored: 8, Tier: "local", Bytes: 1}}, 40)
		return r.tiered.rates.Watch(p.begun(r.tiered.caches), engine.PagesAtOnce).Deadline()
	}
	require.Less(t, deadline(newFakeRunner, 32), 10*time.Second, "8 tokens")
	require.Greater(t, deadline(newWindowedRunner, 32), 39*time.Second, "40 tokens")
}

// An unknown tier is asked for one page at first.
func TestFirstPageOfAnUnknownTierIsReadAlone(t *testing.T) {
	r, store, prompt := decided(t)
	r.tiered.rates.Computed(1000, 0, time.Hour)
	var order []int
	release := make(chan struct{})
	store.onRead = func(page int) {
		store.mu.Lock()
		order = append(order, page)
		alone := len(order) == 1
		store.mu.Unlock()
		if alone {
			<-release
		}
	}
	done := make(chan Restored)
	go func() { done <- r.load(r.slots[0], prompt, true) }()
	release <- struct{}{}
	require.Equal(t, 40, (<-done).Held)
	require.Equal(t, 0, order[0])
	require.Len(t, order, 5)
	slices.Sort(order)
	require.Equal(t, []int{0, 1, 2, 3, 4}, order)
}

// TestThePriceKnowsTheForm: a page whose file is smaller than its rows is priced by pages of its kind.
func TestThePriceKnowsTheForm(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 1, 128, Options{})
	r.tiered.mu.Lock()
	require.True(t, r.tiered.sealer.ready())
	r.tiered.mu.Unlock()
	all, err := r.tiered.caches.layout(8, func(int) bool { return true })
	require.NoError(t, err)
	rows := int64(all.Size())
	p := plan{prompt: prompt{tokens: tokenRange(1, 25)}, begin: make([]int, len(r.tiered.caches.groups))}
	var refs []diskstore.Ref
	for i, bytes := range []int64{rows + 4096, rows * 5 / 6, rows / 3} {
		refs = append(refs, diskstore.Ref{Start: uint32(8 * i), Tokens: 8, Stored: 8, Tier: "local", Bytes: bytes})
	}
	p.take(refs, 24)
	for i, want := range []rates.Form{rates.Whole, rates.Packed, rates.Quarter} {
		page := p.costs(r.tiered.caches).Pages[i]
		require.Equal(t, want, page.Form)
		require.Equal(t, refs[i].Bytes, page.Bytes)
	}

	rate := rates.New()
	r.cost(rate)
	r.tiered.gate.Always = false
	rate.Computed(1000, 0, 1000*time.Second)
	pages := p.costs(r.tiered.caches).Pages
	for range 3 { // raw pages come at once, decoding takes longer than computing
		rate.Watch(rates.Chain{Pages: pages[:1]}, engine.PagesAtOnce).Arrived(time.Millisecond)
		rate.Watch(rates.Chain{Pages: pages[1:2]}, engine.PagesAtOnce).Arrived(time.Minute)
		rate.Watch(rates.Chain{Pages: pages[2:]}, engine.PagesAtOnce).Arrived(time.Minute)
	}
	require.Equal(t, 1, rate.Plan(p.costs(r.tiered.caches)))
}
