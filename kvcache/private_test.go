package kvcache

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ollama/ollama/model/input"
)

// storedPast is the end of the last page or tail in the store.
func (s *memStore) storedPast() (end int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, page := range s.pages {
		end = max(end, int(page.Start)+len(page.Tokens))
	}
	for _, tails := range s.tails {
		for _, tail := range tails {
			end = max(end, int(tail.Start)+len(tail.Tokens))
		}
	}
	return end
}

// Rows of an image have seen the text after it in their batch. What a private request has
// computed of an image is not stored for the public one that goes on with the same image and
// other text, nor is what that computes on it.
func TestImagesThatSawPrivateTextAreNotStored(t *testing.T) {
	const begin, end, n = 13, 19, 40 // the second batch of 12 has the image and 5 tokens after it
	private := withImage(n, begin, end, 1)
	public := slices.Concat(private[:end], inputsOf(tokenRange(3, 30)))
	// load begins a request in a slot of which another holds some
	fork := func(r *fakeRunner, in []*input.Input) *fakeSlot {
		r.mu.Lock()
		defer r.mu.Unlock()
		n := commonPrefix(r.slots[0].inputs, in)
		r.tiered.CopyPrefix(0, 1, int32(n))
		r.slots[1].inputs = slices.Clone(r.slots[0].inputs[:n])
		return r.slots[1]
	}
	for name, test := range map[string]func(r *fakeRunner){
		"landed": func(r *fakeRunner) {
			r.drain()
			r.finish(r.slots[0])
			r.runInputs(r.slots[0], public)
		},
		"in flight": func(r *fakeRunner) {
			require.True(t, r.build())
			require.True(t, r.build())
			r.finish(r.slots[0])
			r.runInputs(r.slots[0], public)
		},
		"forked": func(r *fakeRunner) {
			r.drain()
			r.finish(r.slots[0])
			r.runInputs(fork(r, public), public)
		},
		"forked in flight": func(r *fakeRunner) {
			require.True(t, r.build())
			require.True(t, r.build())
			slot := fork(r, public)
			r.finish(r.slots[0])
			r.runInputs(slot, public)
		},
		"after another private request": func(r *fakeRunner) {
			r.drain()
			r.finish(r.slots[0])
			r.loadInputs(r.slots[0], public[:30], false)
			r.drain()
			r.finish(r.slots[0])
			r.runInputs(r.slots[0], public)
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := newMemStore(t)
			r := newFakeRunner(t, store, 2, 128, Options{Media: identify})
			r.loadInputs(r.slots[0], private, false)
			test(r)
			r.flush()
			require.LessOrEqual(t, store.storedPast(), begin)

			// once the slot holds other text all of it is computed again, and public
			for _, slot := range r.slots {
				r.mu.Lock()
				require.NoError(t, r.tiered.Remove(slot.id, 0, math.MaxInt32))
				slot.inputs = nil
				r.mu.Unlock()
			}
			r.runInputs(r.slots[0], public)
			r.flush()
			require.Equal(t, len(public), store.storedPast())
		})
	}
}

// What rows of an image have seen may be stored when it is in a public prompt itself.
func TestImagesOfAPublicPromptAreStored(t *testing.T) {
	store := newMemStore(t)
	r := newFakeRunner(t, store, 1, 128, Options{Media: identify})
	private := withImage(40, 13, 19, 1)
	r.loadInputs(r.slots[0], private, false)
	r.drain()
	r.finish(r.slots[0])
	require.Equal(t, 39, r.loadInputs(r.slots[0], private, true).Held)
	r.drain()
	r.finish(r.slots[0])
	r.flush()
	require.Equal(t, 40, store.storedPast())

	// what has been made public stays so
	r.runInputs(r.slots[0], slices.Concat(private[:19], inputsOf(tokenRange(3, 30))))
	r.flush()
	require.Equal(t, 49, store.storedPast())
}

// Text that was in one batch with an image after it is not stored, however little of the
// batch is kept.
func TestImagesThatReachBackwardsWhenTheirBatchIsCut(t *testing.T) {
	store := newMemStore(t)
	r := newFakeRunner(t, store, 1, 128, Options{Backwards: true})
	slot := r.slots[0]
	r.loadInputs(slot, withImage(12, 9, 12, 1), true)
	require.True(t, r.build())
	r.finish(slot)
	r.runInputs(slot, inputsOf(append(tokenRange(1, 9), tokenRange(2, 20)...)))
	r.flush()
	require.Zero(t, store.storedPast())
}
