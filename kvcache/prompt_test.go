package kvcache

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"github.com/ollama/ollama/model/input"
	"github.com/stretchr/testify/require"
)

// identify identifies images 1 to 9.
func identify(hash uint64) ([32]byte, bool) {
	return sha256.Sum256(fmt.Append(nil, hash)), hash < 10
}

// withImage is a prompt of n tokens whose span [begin, end) is an image.
func withImage(n, begin, end int, hash uint64) []*input.Input {
	in := inputsOf(tokenRange(1, n))
	in[begin].SameBatch = end - begin - 1
	in[begin+1].MultimodalHash = hash
	return in
}

func TestRestoreEndsBeforeASpan(t *testing.T) {
	const begin, end, n = 13, 31, 60
	for chain, want := range map[int]int{1: 8, 2: begin, 3: begin, 4: 32, 5: 40} { // pages of 8
		t.Run(fmt.Sprint(chain, " pages"), func(t *testing.T) {
			r, store := newStored(t, newFakeRunner, 1, 128, Options{Media: identify})
			r.runInputs(r.slots[0], withImage(n, begin, end, 1))
			r.save(r.slots[0], tokenRange(2, 20))
			for key, page := range store.pages {
				if int(page.Start) >= 8*chain && page.Tokens[0] < 2000 {
					delete(store.pages, key)
				}
			}
			require.Equal(t, want, r.loadInputs(r.slots[0], withImage(n, begin, end, 1), true).Held)
		})
	}
}

func TestImagesAreIdentifiedByContent(t *testing.T) {
	const begin, end, n = 13, 31, 60
	r, store := newStored(t, newFakeRunner, 1, 128, Options{Media: identify})
	r.runInputs(r.slots[0], withImage(n, begin, end, 1))
	r.flush()
	for _, c := range []struct { // up to the difference, and never into a part of the prompt's own span
		what string
		in   []*input.Input
		want int
	}{
		{"the same image", withImage(n, begin, end, 1), n - 1},
		{"another image", withImage(n, begin, end, 2), begin},
		{"the image elsewhere", withImage(n, begin+2, end, 1), begin + 1},
		{"no image", inputsOf(tokenRange(1, n)), begin + 1},
		{"an image without identity", withImage(n, begin, end, 11), begin},
	} {
		fresh := newFakeRunner(t, store, 1, 128, Options{Media: identify})
		require.Equal(t, c.want, fresh.loadInputs(fresh.slots[0], c.in, true).Held, c.what)
	}
}

// Where earlier text attends to an image, nothing of their batch is stored.
func TestImagesThatReachBackwards(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{Backwards: true})
	r.runInputs(r.slots[0], withImage(60, 33, 40, 1)) // in batches of 12
	r.flush()
	fresh := newFakeRunner(t, store, 1, 128, Options{Backwards: true})
	require.Equal(t, 24, fresh.loadInputs(fresh.slots[0], inputsOf(tokenRange(1, 60)), true).Held)
}
