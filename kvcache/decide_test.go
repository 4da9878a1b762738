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
	"github.com/kvtier/kvtier/kvcache/rates"
)

// stuckStore is a store of which some pages never come.
type stuckStore struct {
	*memStore
	mu      sync.Mutex
	stuck   map[int]bool // by number of the page
	entered chan int     // receives the number of each such page that is asked for
}

func newStuckStore(t testing.TB) *stuckStore {
	return &stuckStore{memStore: newMemStore(t), stuck: make(map[int]bool), entered: make(chan int, 100)}
}

func (s *stuckStore) stick(pages ...int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.stuck)
	for _, page := range pages {
		s.stuck[page] = true
	}
}

func (s *stuckStore) Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, buf []byte) error {
	s.mu.Lock()
	n := int(ref.Start) / 8
	stuck := s.stuck[n]
	s.mu.Unlock()
	if stuck {
		s.entered <- n
		<-ctx.Done()
		return ctx.Err()
	}
	return s.memStore.Read(ctx, ref, tokens, layout, buf)
}

// decided makes a runner restore only what pays, of which nothing is known yet, and returns a
// prompt of five pages and one token that its store has and its slot does not.
func (r *fakeRunner) decided() []int32 {
	prompt := tokenRange(1, 41)
	r.run(r.slots[0], prompt, nil, true)
	r.run(r.slots[0], tokenRange(2, 9), nil, true)
	r.flush()
	r.tiered.opts.AlwaysRestore = false
	r.tiered.rates = rates.New()
	return prompt
}

func decided(t *testing.T) (*fakeRunner, *stuckStore, []int32) {
	store := newStuckStore(t)
	r := newFakeRunner(t, store, 1, 128, Options{})
	return r, store, r.decided()
}

// learn makes it known what a token and a page take.
func learn(r *rates.Rates, token, page time.Duration) {
	r.Computed(1000, 0, 1000*token)
	for range 3 {
		r.Watch(rates.Chain{Pages: []rates.Page{{Tokens: 8, Bytes: 1, Tier: "local"}}}, pagesInMemory).Arrived(page)
	}
}

func TestPagesThatCostMoreThanComputingAreNotRead(t *testing.T) {
	r, store, prompt := decided(t)
	store.stick(0, 1, 2, 3, 4)
	learn(r.tiered.rates, time.Microsecond, time.Hour)
	require.Zero(t, r.load(r.slots[0], prompt, true).Held)
	require.Equal(t, int64(5), r.tiered.Stats().SkippedPages)
	r.drain()
	r.cache.requireRows(t, 0, prompt)
	r.finish(r.slots[0])
}

// Without any request waiting for it, a tier that disappointed is found to be quick again.
func TestRefusedTierIsProbedBehindTheRequest(t *testing.T) {
	r, store, prompt := decided(t)
	learn(r.tiered.rates, time.Minute, time.Millisecond)
	r.tiered.rates.Watch(rates.Chain{Pages: []rates.Page{{Tokens: 8, Bytes: 1, Tier: "local"}}}, pagesInMemory).GaveUp(time.Hour)
	store.reads = 0
	require.Zero(t, r.run(r.slots[0], prompt, nil, true).Held)
	r.tiered.probes.Wait()
	require.Equal(t, pagesInMemory, store.reads)

	r.run(r.slots[0], tokenRange(2, 9), nil, true)
	require.Equal(t, 40, r.load(r.slots[0], prompt, true).Held)
	r.drain()
	r.cache.requireRows(t, 0, prompt)
}

// giveUp lets a page's time be over when it is waited for.
func (r *fakeRunner) giveUp(store *stuckStore, page int) {
	store.stick(page)
	due, waiting := make(chan time.Time), make(chan struct{})
	r.tiered.after = func(time.Duration) <-chan time.Time { return due }
	writes := page * 2 * r.cache.layers
	if writes == 0 {
		close(waiting)
	}
	r.cache.onWrite = func() { // of the page before
		if writes--; writes == 0 {
			close(waiting)
		}
	}
	go func() {
		<-waiting
		for <-store.entered != page {
		}
		due <- time.Time{}
	}()
}

// A page that never comes is given up, and what came before it stays.
func TestPageThatDoesNotComeIsGivenUp(t *testing.T) {
	for _, stuck := range []int{0, 2, 4} {
		r, store, prompt := decided(t)
		learn(r.tiered.rates, time.Hour, time.Hour)
		r.giveUp(store, stuck)
		restored := r.load(r.slots[0], prompt, true)
		require.Equal(t, stuck*8, restored.Held)
		require.Equal(t, stuck*8, restored.Tokens)
		r.drain()
		r.cache.requireRows(t, 0, prompt)
		r.finish(r.slots[0])
		r.tiered.Close() // with a probe of that page on its way
	}
}

// Where a window makes pages useful only all together, what came may serve a shorter prefix
// at most.
func TestPageOfAWindowThatDoesNotComeIsGivenUp(t *testing.T) {
	store := newStuckStore(t)
	store.windowed = true
	r := newWindowedRunner(t, store, 1, 128, Options{})
	prompt := r.decided()
	learn(r.tiered.rates, time.Hour, time.Hour)
	r.giveUp(store, 1)
	require.LessOrEqual(t, r.load(r.slots[0], prompt, true).Held, 8)
	r.drain()
	r.model.requireRows(t, 0, prompt)
}

// A tier of which nothing is known is asked for one page at first.
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
