package kvcache

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// tailsOf are the numbers of tokens up to the ends of the stored tails, in ascending order.
func (s *memStore) tailsOf() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ends []int
	for _, tails := range s.tails {
		for _, tail := range tails {
			ends = append(ends, int(tail.Start)+len(tail.Tokens))
		}
	}
	slices.Sort(ends)
	return ends
}

// delayedRunner runs a request of 21 tokens whose tail is not stored yet.
func delayedRunner(t *testing.T, slots int) (*fakeRunner, *memStore, *clock, []int32) {
	store, text := newMemStore(t), tokenRange(1, 21)
	r := newFakeRunner(t, store, slots, 64, Options{TailDelay: time.Minute})
	c := withClock(r)
	r.keep(r.slots[0], text)
	require.Empty(t, store.tailsOf())
	require.Equal(t, []int{0, 1}, store.wrote)
	return r, store, c, text
}

// TestATailIsStoredWhenItsSlotRests, and not before another slot's batches.
func TestATailIsStoredWhenItsSlotRests(t *testing.T) {
	r, store, c, _ := delayedRunner(t, 2)
	wait, set := r.timers.set()
	require.True(t, set)
	require.Equal(t, time.Minute, wait)
	r.keep(r.slots[1], tokenRange(2, 5))
	require.Empty(t, store.tailsOf())
	c.add(time.Minute)
	r.fire()
	require.Equal(t, []int{5, 21}, store.tailsOf())
	_, set = r.timers.set()
	require.False(t, set, "nothing is left to do")
}

// TestATailThatGrowsIsStoredOnce: each turn of a chat makes it longer.
func TestATailThatGrowsIsStoredOnce(t *testing.T) {
	r, store, c, text := delayedRunner(t, 1)
	for turn := range 6 {
		text = append(text, tokenRange(3+turn, 2)...)
		r.run(r.slots[0], text, []int32{9}, true) // the runner forgets the last token
		r.slots[0].inputs = r.slots[0].inputs[:len(text)]
		c.add(time.Second)
		r.timers.fire()
		r.settle()
		require.Empty(t, store.tailsOf())
	}
	c.add(time.Minute)
	r.timers.fire()
	r.settle()
	require.Equal(t, []int{34}, store.tailsOf())
}

// TestATailIsStoredBeforeItsRowsLeave, however recent it is.
func TestATailIsStoredBeforeItsRowsLeave(t *testing.T) {
	for name, leave := range map[string]func(*fakeRunner, []int32){
		"other text": func(r *fakeRunner, _ []int32) { r.load(r.slots[0], tokenRange(2, 9), true) },
		"a part": func(r *fakeRunner, text []int32) {
			r.load(r.slots[0], append(slices.Clone(text[:21-tailSlack-1]), 9), true)
		},
		"fork": func(r *fakeRunner, _ []int32) {
			r.run(r.slots[1], tokenRange(2, 4), nil, true)
			r.mu.Lock()
			defer r.mu.Unlock()
			r.tiered.CopyPrefix(1, 0, 4)
		},
		"flush": func(r *fakeRunner, _ []int32) { r.flush() },
		"close": func(r *fakeRunner, _ []int32) { r.tiered.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			r, store, _, text := delayedRunner(t, 2)
			leave(r, text)
			_ = r.tiered.queue.wait(t.Context())
			require.Contains(t, store.tailsOf(), 21)
		})
	}
}

// TestATailOfARequestThatIsGivenUp is that of the request before.
func TestATailOfARequestThatIsGivenUp(t *testing.T) {
	r, store, c, text := delayedRunner(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := r.loadContext(ctx, r.slots[0], inputsOf(append(slices.Clone(text), 1, 2)), true)
	require.ErrorIs(t, err, context.Canceled)
	c.add(time.Minute)
	r.fire()
	require.Equal(t, []int{21}, store.tailsOf())
}

// TestATailWhileTheStoreFails waits for the end of the outage, and no timer runs in vain.
func TestATailWhileTheStoreFails(t *testing.T) {
	silence(t)
	r, store, c, _ := delayedRunner(t, 1)
	store.fail = errRefused
	c.add(time.Minute)
	r.fire()
	for range 8 { // outages begin after some failures
		require.Positive(t, r.next(c))
	}
	store.setFail(nil)
	c.add(time.Hour)
	r.timers.fire()
	r.settle()
	require.Equal(t, []int{21}, store.tailsOf())
}

// TestAPrivateTailIsNotStored, though its time has come.
func TestAPrivateTailIsNotStored(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 64, Options{TailDelay: time.Nanosecond})
	r.run(r.slots[0], tokenRange(1, 21), nil, false)
	r.timers.fire()
	r.settle()
	require.Empty(t, store.tailsOf())
	require.NoError(t, r.tiered.Remove(0, 0, math.MaxInt32))
	r.settle()
	require.Empty(t, store.tailsOf())
}

// TestATailBeforeAPrivateTurn is stored, though the private turn goes on with it.
func TestATailBeforeAPrivateTurn(t *testing.T) {
	r, store, c, text := delayedRunner(t, 1)
	turn := append(slices.Clone(text), 7, 8)
	r.run(r.slots[0], turn, nil, false)
	r.settle()
	require.Equal(t, []int{21}, store.tailsOf())
	c.add(time.Minute)
	r.timers.fire()
	r.load(r.slots[0], tokenRange(2, 9), true)
	r.settle()
	require.Equal(t, []int{21}, store.tailsOf())
}

// TestATailOfATurnThatHasBegun is stored by a flush, though no batch of the turn was computed yet.
func TestATailOfATurnThatHasBegun(t *testing.T) {
	r, store, _, text := delayedRunner(t, 1)
	r.load(r.slots[0], append(slices.Clone(text), 7, 8), true)
	r.flush()
	require.Equal(t, []int{21}, store.tailsOf())
}
