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
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/steady"
)

// damaged makes a page damaged, whose reads end when answer is called.
func (s *memStore) damaged(page int) (answer func()) {
	hold := make(chan struct{})
	s.setsAside, s.readErr = true, map[int]error{page: pagefile.ErrDamaged}
	s.onRead = func(n int) {
		if n == page {
			<-hold
		}
	}
	return func() { close(hold) }
}

// requireStoredAgain requires that the request that finds a page unreadable, and computes it, also
// stores it.
func requireStoredAgain(t *testing.T, r *fakeRunner, store *memStore) {
	store.setsAside = true
	text, other := tokenRange(1, 50), tokenRange(2, 50)
	r.run(r.slots[0], text, nil, true)
	r.save(r.slots[0], other)
	var keys []pagefile.Key
	for _, ref := range store.Find(t.Context(), diskstore.Prompt{Parent: store.root, Tokens: text[:40]}).Exact {
		keys = append(keys, ref.Key)
	}
	for page := range 5 {
		for _, err := range losingErrors {
			store.readErr = map[int]error{page: err}
			r.run(r.slots[0], slices.Concat(text[:41], []int32{9}), nil, true)
			store.readErr = nil
			r.keep(r.slots[0], other) // the rows leave the slot
			for i, key := range keys {
				require.True(t, store.Has(key), "page %d, after page %d could not be read: %v", i, page, err)
			}
		}
	}
}

// TestAPageThatCannotBeReadIsStoredAgain by the request that computes it, after any error.
func TestAPageThatCannotBeReadIsStoredAgain(t *testing.T) {
	silence(t)
	r, store := newStored(t, newFakeRunner, 1, 256, Options{Poison: true})
	requireStoredAgain(t, r, store)
}

// TestAPageThatAPlanCannotReadIsStoredAgain: a plan reads the cell numbers of windows, and which
// pages have a state.
func TestAPageThatAPlanCannotReadIsStoredAgain(t *testing.T) {
	silence(t)
	t.Run("window", func(t *testing.T) {
		r, store := newStored(t, newWindowedRunner, 1, 256, Options{Poison: true})
		requireStoredAgain(t, r, store)
	})
	t.Run("state", func(t *testing.T) {
		store := newMemStore(t)
		requireStoredAgain(t, newHybridRunner(t, store, Options{Poison: true, StateEvery: 8}).fakeRunner, store)
	})
}

// TestAPageThatAProbeFindsDamagedIsStoredAgain, though its rows were computed before the probe read it.
func TestAPageThatAProbeFindsDamagedIsStoredAgain(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{})
	prompt := r.decided()
	learn(r.tiered.rates, time.Microsecond, time.Hour)
	answer := store.damaged(0)
	require.Zero(t, r.run(r.slots[0], prompt, nil, true).Held)
	answer()
	r.tiered.reads.Wait()
	store.wrote = nil
	r.keep(r.slots[0], tokenRange(3, 5))
	require.Equal(t, []int{0}, store.wrote)
}

// TestAPageThatOneSlotCannotReadIsStoredByAnother that has its rows.
func TestAPageThatOneSlotCannotReadIsStoredByAnother(t *testing.T) {
	silence(t)
	r, store := newStored(t, newFakeRunner, 2, 256, Options{})
	text := tokenRange(1, 50)
	r.keep(r.slots[0], text)
	store.setsAside, store.readErr, store.wrote = true, map[int]error{2: pagefile.ErrDamaged}, nil
	r.load(r.slots[1], text, false) // its own rows are never stored
	r.complete(r.slots[1])
	r.settle()
	require.Equal(t, []int{2}, store.wrote)
}

// TestAPageThatIsStillStoredIsNotCopiedAgain by a request that computes it because reading failed: the
// request gave it up, or the store did not answer.
func TestAPageThatIsStillStoredIsNotCopiedAgain(t *testing.T) {
	silence(t)
	for _, err := range []error{context.Canceled, context.DeadlineExceeded, steady.ErrHung, tier.ErrTierDown, tier.ErrRootMissing} {
		r, store := newStored(t, newFakeRunner, 1, 256, Options{})
		text := tokenRange(1, 50)
		r.run(r.slots[0], text, nil, true)
		r.keep(r.slots[0], tokenRange(2, 5))
		store.readErr, store.wrote = map[int]error{2: err}, nil
		require.Equal(t, 16, r.run(r.slots[0], text, nil, true).Held)
		r.settle()
		require.Empty(t, store.wrote, "%v", err)
	}
}

// TestALostPageAfterAnotherIsStoredAgain: the slot's next request looks for pages behind one that
// was given up, too.
func TestALostPageAfterAnotherIsStoredAgain(t *testing.T) {
	silence(t)
	r, store := newStored(t, newFakeRunner, 1, 256, Options{})
	text := tokenRange(1, 50)
	r.keep(r.slots[0], text)
	store.lose(8)
	store.failing = map[int]error{1: tier.ErrNoSpace}
	r.keep(r.slots[0], text)
	store.failing = nil
	store.lose(24)
	r.keep(r.slots[0], text)
	require.Equal(t, 50, restarted(t, store, text))
}

// TestAPageThatIsLostBeforePutReturnsIsStoredAgain: a page may be read, and set aside, as soon as it
// has its name.
func TestAPageThatIsLostBeforePutReturnsIsStoredAgain(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 256, Options{})
	stored, end := make(chan pagefile.Key), make(chan struct{})
	var once sync.Once
	store.kept = func(p *pagefile.Page) {
		if p.Start == 16 {
			once.Do(func() { stored <- p.Key(); <-end })
		}
	}
	r.run(r.slots[0], tokenRange(1, 50), nil, true)
	key := <-stored
	require.NotZero(t, store.lose(16))
	r.tiered.noteRead(diskstore.Ref{Key: key}, pagefile.ErrDamaged)
	close(end)
	r.settle()
	require.True(t, store.Has(key))
}

// TestAPageThatIsLostAfterItWasReadIsStoredAgain: the rows of a slot came from a page that another
// slot's request then found damaged.
func TestAPageThatIsLostAfterItWasReadIsStoredAgain(t *testing.T) {
	silence(t)
	r, store := newStored(t, newFakeRunner, 1, 256, Options{})
	text := tokenRange(1, 50)
	r.run(r.slots[0], text, nil, true)
	r.keep(r.slots[0], tokenRange(2, 5))
	refs := store.Find(t.Context(), diskstore.Prompt{Parent: store.root, Tokens: text}).Exact
	store.wrote = nil
	store.onRead = func(page int) {
		if page == 4 { // page 1 was read before
			store.lose(8)
			r.tiered.noteRead(refs[1], pagefile.ErrDamaged)
		}
	}
	require.Equal(t, 49, r.run(r.slots[0], text, nil, true).Held)
	r.settle()
	require.Equal(t, []int{1}, store.wrote)
}

// TestAPageThatALateReadFindsDamagedIsStoredAgain: the request had given up the read.
func TestAPageThatALateReadFindsDamagedIsStoredAgain(t *testing.T) {
	silence(t)
	r, store := newStored(t, newFakeRunner, 1, 256, Options{})
	text := tokenRange(1, 50)
	r.run(r.slots[0], text, nil, true)
	r.keep(r.slots[0], tokenRange(2, 5))
	store.wrote = nil
	answer := store.damaged(2)
	r.tiered.store.Patience.Page = 10 * time.Millisecond
	require.LessOrEqual(t, r.run(r.slots[0], text, nil, true).Held, 16)
	answer()
	require.Eventually(t, func() bool { return !r.tiered.store.Hangs() }, time.Minute, time.Microsecond)
	r.keep(r.slots[0], tokenRange(3, 5))
	require.Equal(t, []int{2}, store.wrote)
}
