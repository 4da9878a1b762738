package kvcache

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ollama/ollama/model/input"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// reaching are the options of a model in which an image attends to all of its batch.
var reaching = Options{Media: identify, Reach: fakeBatchMax}

// reused is the number of a prompt's tokens that a new process finds.
func reused(t *testing.T, store *memStore, in []*input.Input) int {
	r := newFakeRunner(t, store, 1, 128, reaching)
	return r.loadInputs(r.slots[0], in, true).Held
}

// Rows of an image attend to the text behind it up to the end of its batch. They are of use where
// all of that text is the same, and each text behind an image is found again.
func TestImagesThatReachAhead(t *testing.T) {
	for name, c := range map[string]struct{ begin, end, n, batch int }{ // the span of the image, the prompt, the end of the image's batch
		"in a page that ends in the image":    {13, 19, 60, 24},
		"in a page that ends behind it":       {17, 19, 60, 24},
		"in a page that ends behind its text": {24, 26, 60, 36},
		"at a page's begin":                   {15, 19, 60, 24},
		"in a tail":                           {40, 43, 47, 47},
		"at a tail's begin":                   {39, 43, 46, 46},
		"in the first page":                   {0, 3, 60, 12},
		"in a text shorter than a page":       {1, 4, 7, 7},
	} {
		t.Run(name, func(t *testing.T) {
			store := newMemStore(t)
			first := withImage(c.n, c.begin, c.end, 1)
			r := newFakeRunner(t, store, 1, 128, reaching)
			r.runInputs(r.slots[0], first)
			r.flush()
			for at := c.end; at < c.batch; at++ {
				other := slices.Concat(first[:at], inputsOf(tokenRange(3, 30)))
				require.LessOrEqual(t, reused(t, store, other), c.begin, "other text from %d on", at)
			}
			require.Equal(t, c.n-1, reused(t, store, first), "the same prompt")
			require.Equal(t, c.batch, reused(t, store, slices.Concat(first[:c.batch], inputsOf(tokenRange(3, 30)))), "other text behind the batch")
			require.Equal(t, c.n, reused(t, store, slices.Concat(first, inputsOf(tokenRange(4, 30)))), "the next turn")

			second := slices.Concat(first[:c.end], inputsOf(tokenRange(5, 30)))
			r = newFakeRunner(t, store, 1, 128, reaching)
			r.runInputs(r.slots[0], second)
			r.flush()
			require.Equal(t, c.n-1, reused(t, store, first), "the first text")
			require.Equal(t, len(second)-1, reused(t, store, second), "the second text")
		})
	}
}

// Several images, in one batch and in several, each with text behind it.
func TestSeveralImagesThatReachAhead(t *testing.T) {
	image := func(seed, n, begin, end int, hash uint64) []*input.Input {
		in := withImage(n, begin, end, hash)
		for i := range in {
			in[i].Token += int32(1000 * seed)
		}
		return in
	}
	for name, in := range map[string][]*input.Input{
		"in one page and one batch":       slices.Concat(image(1, 4, 1, 3, 1), image(2, 40, 1, 3, 2)),
		"in one batch":                    slices.Concat(image(1, 8, 1, 3, 1), image(2, 40, 1, 3, 2)),
		"in several batches":              slices.Concat(image(1, 20, 1, 3, 1), image(2, 20, 4, 7, 1), image(3, 40, 1, 3, 2)),
		"in several batches, with a tail": slices.Concat(image(1, 20, 1, 3, 1), image(2, 23, 20, 22, 1)),
	} {
		t.Run(name, func(t *testing.T) {
			r, store := newStored(t, newFakeRunner, 1, 128, reaching)
			r.runInputs(r.slots[0], in)
			r.flush()
			require.Equal(t, len(in)-1, reused(t, store, in))
			for k, other := range in {
				if other.MultimodalHash != 0 {
					changed := slices.Clone(in)
					changed[k] = &input.Input{Token: other.Token, MultimodalHash: other.MultimodalHash + 5}
					require.Less(t, reused(t, store, changed), k+1, "another image at %d", k)
				}
			}
		})
	}
}

// A slot keeps the rows of an image for another text, as in stock Ollama. Nobody else gets them.
func TestImagesThatReachAheadInASlot(t *testing.T) {
	const begin, end, n, batch = 13, 19, 40, 24
	first := withImage(n, begin, end, 1)
	second := slices.Concat(first[:end], inputsOf(tokenRange(3, 30)))
	r, store := newStored(t, newFakeRunner, 1, 128, reaching)
	r.runInputs(r.slots[0], first)
	require.Equal(t, end, r.loadInputs(r.slots[0], second, true).Held)
	r.complete(r.slots[0])
	r.flush()
	require.Equal(t, n, store.storedPast(), "nothing of the second text")
	require.LessOrEqual(t, reused(t, store, second), begin)

	require.Equal(t, n-1, r.loadInputs(r.slots[0], first, true).Held, "exact rows replace the slot's")
	r.complete(r.slots[0])
	longer := slices.Concat(first, inputsOf(tokenRange(4, 10)))
	r.runInputs(r.slots[0], longer)
	r.flush()
	require.Equal(t, len(longer)-1, reused(t, store, longer), "and are stored")

	r.runInputs(r.slots[0], inputsOf(tokenRange(9, 5)))
	r.runInputs(r.slots[0], second)
	r.flush()
	require.Equal(t, len(second)-1, reused(t, store, second), "computed for its own text")
}

// A prompt whose last token is in the image's batch is asked again: its last token is computed again.
func TestTheSamePromptWithAnImageThatReachesAhead(t *testing.T) {
	for _, answer := range []int{0, 1, 5} {
		t.Run(fmt.Sprint(answer), func(t *testing.T) {
			in := withImage(11, 2, 5, 1)
			r, store := newStored(t, newFakeRunner, 1, 128, reaching)
			for range 3 {
				r.loadInputs(r.slots[0], in, true)
				r.drain()
				for _, token := range tokenRange(3, answer) {
					r.generate(r.slots[0], token)
				}
				r.finish(r.slots[0])
			}
			longer := slices.Concat(in, inputsOf(tokenRange(3, 20)))
			r.runInputs(r.slots[0], longer)
			r.flush()
			require.Equal(t, len(longer)-1, reused(t, store, longer))
		})
	}
}

// Rows of an image that attend to an input without identity are not stored.
func TestImagesThatReachAnInputWithoutIdentity(t *testing.T) {
	in := slices.Concat(withImage(15, 10, 14, 1), withImage(30, 1, 4, 99))
	r, store := newStored(t, newFakeRunner, 1, 128, reaching)
	r.batch = 24
	r.runInputs(r.slots[0], in)
	r.flush()
	require.LessOrEqual(t, store.storedPast(), 11)
}

// Images in several batches come back from the page store, each with its own text.
func TestImagesThatReachAheadComeBackFromDisk(t *testing.T) {
	root := t.TempDir()
	begin := func() *fakeRunner {
		return newFakeRunner(t, newDiskStore(t, root), 1, 128, reaching)
	}
	first := slices.Concat(withImage(20, 1, 3, 1), withImage(40, 4, 7, 2))
	second := slices.Concat(first[:27], inputsOf(tokenRange(5, 30))) // the second batch of 12 ends at 24, the third at 36
	for _, in := range [][]*input.Input{first, second} {
		r := begin()
		r.runInputs(r.slots[0], in)
		r.flush()
		r.tiered.Close()
	}
	for name, c := range map[string]struct {
		in   []*input.Input
		want int
	}{
		"the first text":  {first, len(first) - 1},
		"the second text": {second, len(second) - 1},
		"a third text":    {slices.Concat(first[:27], inputsOf(tokenRange(6, 30))), 24}, // where the span begins
	} {
		t.Run(name, func(t *testing.T) {
			r := begin()
			require.Equal(t, c.want, r.loadInputs(r.slots[0], c.in, true).Held)
			r.tiered.Close()
		})
	}
}

// TestForkBesideAnImageInFlight: a slot is forked while its image's batch is computed, for a prompt that
// goes on with other text, of which pages are stored. Keys of the fork follow from its own image.
func TestForkBesideAnImageInFlight(t *testing.T) {
	store := newMemStore(t)
	first := withImage(60, 13, 19, 1) // its batch ends at 24
	second := slices.Concat(first[:20], inputsOf(tokenRange(5, 30)))
	r := newFakeRunner(t, store, 1, 128, reaching)
	r.runInputs(r.slots[0], second)
	r.flush()
	r.tiered.Close()

	r = newFakeRunner(t, store, 2, 128, reaching)
	r.loadInputs(r.slots[0], first, true)
	for len(r.slots[0].inputs) < 24 {
		if r.build(); len(r.slots[0].inputs) < 24 {
			r.compute()
		}
	}
	r.mu.Lock()
	r.tiered.CopyPrefix(0, 1, 20)
	r.slots[1].inputs, r.slots[1].exact = slices.Clone(r.slots[0].inputs[:20]), 0
	r.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.loadInputs(r.slots[1], slices.Concat(second, inputsOf(tokenRange(6, 20))), true)
	}()
	for waits := true; waits; {
		select {
		case <-done:
			waits = false
		case <-time.After(time.Millisecond):
			r.compute()
		}
	}
	r.complete(r.slots[1])
	r.flush()
	s, parent := r.tiered.slots.of[1], r.tiered.opts.Fingerprint
	require.NotEmpty(t, s.keys)
	for page, key := range s.keys {
		tokens, media := s.tokens[page*8:page*8+8], pagefile.MediaWithin(s.media, page*8, 8)
		require.Equal(t, pagefile.ChainKey(parent, tokens, media), key, "page %d", page)
		parent = key
	}
}
