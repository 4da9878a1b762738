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

// A private request that reaches the end of its context in a slot that cannot shift is computed again
// without the discarded tokens: private text is then at positions of public text.
func TestPrivateTextThatIsComputedAnewIsNotStored(t *testing.T) {
	type starter = startRunner
	recurrent := func(t testing.TB, store Store, _, _ int, opts Options) *fakeRunner {
		return newHybridRunner(t, store, opts).fakeRunner
	}
	public := tokenRange(1, 40)
	rigid := func(r *fakeRunner) { r.cache.rigid = true }
	fork := func(r *fakeRunner) { r.fork(r.slots[1], append(slices.Clone(public), 7)) }
	for name, test := range map[string]struct {
		start      starter
		beforehand func(r *fakeRunner)
		underWay   bool // its last batch is being computed when the context ends
	}{
		"recurrent":             {start: recurrent, beforehand: rigid},
		"recurrent, under way":  {start: recurrent, beforehand: rigid, underWay: true},
		"rigid":                 {start: newFakeRunner, beforehand: rigid},
		"rigid, under way":      {start: newFakeRunner, beforehand: rigid, underWay: true},
		"forked":                {start: newFakeRunner, beforehand: fork},
		"forked, with a window": {start: newWindowedRunner, beforehand: fork},
		"windows only":          {start: newWindowOnlyRunner, beforehand: rigid},
		"shifted before": {start: newFakeRunner, beforehand: func(r *fakeRunner) {
			r.shift(r.slots[0], 4, 8)
			rigid(r)
		}},
		"for the second time": {start: newFakeRunner, beforehand: func(r *fakeRunner) {
			rigid(r)
			r.shift(r.slots[0], 30, 8)
			r.drain()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			store := newMemStore(t)
			r := test.start(t, store, 2, 128, Options{})
			slot := r.slots[0]
			r.run(slot, public, nil, true)
			r.load(slot, slices.Concat(public, tokenRange(privateBegin, 30)), false)
			for r.build() && !(test.underWay && len(slot.rest) == 0) {
				r.compute()
			}
			test.beforehand(r)
			r.shift(slot, 4, 25)
			r.complete(slot)
			r.save(slot, tokenRange(3, 50)) // rows that leave the slot are not stored either
			store.requirePublic(t)
			require.Equal(t, 50, store.storedPast(), "the next request is")
		})
	}
}

// Rows of an image that is computed again attend to private text, at positions of public text.
func TestImagesThatAreComputedAnewAreNotStored(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{Media: identify})
	slot := r.slots[0]
	r.cache.rigid = true
	public := tokenRange(1, 40)
	r.run(slot, public, nil, true)
	// 40 tokens of public text, an image of 6, and 14 of private text
	r.loadInputs(slot, slices.Concat(inputsOf(public), withImage(20, 0, 6, 1)), false)
	r.drain()
	r.shift(slot, 2, 35) // the image is at 5, in a batch with a token of that
	r.complete(slot)
	r.runInputs(slot, slices.Concat(inputsOf(public[:2]), inputsOf(public[37:]), withImage(6, 0, 6, 1), inputsOf(tokenRange(3, 30))))
	r.flush()
	for _, page := range store.pages {
		require.Empty(t, page.Media)
	}
}

// Rows of an image attend to later text of their batch. A private request's rows of an image
// are not stored for a public request that continues the same image with other text, and
// neither are rows computed after them.
func TestImagesThatSawPrivateTextAreNotStored(t *testing.T) {
	const begin, end, n = 13, 19, 40 // the second batch of 12 has the image and 5 tokens after it
	private := withImage(n, begin, end, 1)
	public := slices.Concat(private[:end], inputsOf(tokenRange(3, 30)))
	// fork begins a request in a slot, with rows copied from another slot
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
			r.complete(r.slots[0])
			r.runInputs(r.slots[0], public)
		},
		"in flight": func(r *fakeRunner) {
			require.True(t, r.build())
			require.True(t, r.build())
			r.finish(r.slots[0])
			r.runInputs(r.slots[0], public)
		},
		"forked": func(r *fakeRunner) {
			r.complete(r.slots[0])
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
			r.complete(r.slots[0])
			r.loadInputs(r.slots[0], public[:30], false)
			r.complete(r.slots[0])
			r.runInputs(r.slots[0], public)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, store := newStored(t, newFakeRunner, 2, 128, Options{Media: identify})
			r.loadInputs(r.slots[0], private, false)
			test(r)
			r.flush()
			require.LessOrEqual(t, store.storedPast(), begin)

			// after other text in the slot, all rows are computed again, for a public request
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

// The rows of an image begin before the input that identifies the image.
func TestTheFirstRowOfAnImageThatSawPrivateTextIsNotStored(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{Media: identify})
	private := withImage(30, 7, 10, 1) // the first page ends with the image's first row
	r.loadInputs(r.slots[0], private, false)
	r.complete(r.slots[0])
	r.runInputs(r.slots[0], slices.Concat(private[:10], inputsOf(tokenRange(3, 30))))
	r.flush()
	require.Zero(t, store.storedPast())
}

// Rows of an image that attend to text of a public prompt may be stored.
func TestImagesOfAPublicPromptAreStored(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{Media: identify})
	private := withImage(40, 13, 19, 1)
	r.loadInputs(r.slots[0], private, false)
	r.complete(r.slots[0])
	require.Equal(t, 39, r.loadInputs(r.slots[0], private, true).Held)
	r.complete(r.slots[0])
	r.flush()
	require.Equal(t, 40, store.storedPast())

	// public text stays public
	r.runInputs(r.slots[0], slices.Concat(private[:19], inputsOf(tokenRange(3, 30))))
	r.flush()
	require.Equal(t, 49, store.storedPast())
}

// Text before an image in the same batch is not stored, even if the batch is cut.
func TestImagesThatReachBackwardsWhenTheirBatchIsCut(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{Backwards: true})
	slot := r.slots[0]
	r.loadInputs(slot, withImage(12, 9, 12, 1), true)
	require.True(t, r.build())
	r.finish(slot)
	r.runInputs(slot, inputsOf(append(tokenRange(1, 9), tokenRange(2, 20)...)))
	r.flush()
	require.Zero(t, store.storedPast())
}
