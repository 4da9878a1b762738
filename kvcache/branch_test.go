package kvcache

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// pageAt is the key of the page that ends a sequence of full pages.
func (s *memStore) pageAt(tokens []int32) pagefile.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, page := range s.pages {
		if int(page.Start)+8 == len(tokens) && slices.Equal(page.Tokens, tokens[page.Start:]) {
			return key
		}
	}
	s.t.Fatalf("no page ends at %d", len(tokens))
	return pagefile.Key{}
}

// TestSharedPartOfAPage: of a prompt that leaves a stored chat anywhere, every token up to there
// comes back. Rows computed after it are stored under keys of their own text.
func TestSharedPartOfAPage(t *testing.T) {
	withAndWithoutWindow(t, func(t *testing.T, start startRunner) {
		store := newMemStore(t)
		history := tokenRange(1, 60)
		first := start(t, store, 1, 128, Options{Poison: true})
		first.run(first.slots[0], history, nil, true)
		first.flush()
		for cut := 1; cut < 48; cut++ {
			prompt := slices.Concat(history[:cut], tokenRange(cut+1, 30))
			r := start(t, store, 1, 128, Options{Poison: true})
			require.Equal(t, cut, r.load(r.slots[0], prompt, true).Held)
			r.drain()
			r.model.requireRows(t, 0, prompt)
			r.finish(r.slots[0])
			r.flush()
			again := start(t, store, 1, 128, Options{Poison: true})
			require.Equal(t, len(prompt)-1, again.load(again.slots[0], prompt, true).Held, "after a cut at %d", cut)
			again.drain()
			again.model.requireRows(t, 0, prompt)
		}
	})
}

// TestSharedPartAfterASlot: the slot holds a part of the page already.
func TestSharedPartAfterASlot(t *testing.T) {
	store := newMemStore(t)
	history := tokenRange(1, 60)
	r := newFakeRunner(t, store, 2, 128, Options{Poison: true})
	r.run(r.slots[0], history, nil, true)
	r.save(r.slots[1], slices.Concat(history[:11], tokenRange(2, 20)))
	r.run(r.slots[0], tokenRange(3, 20), nil, true)
	restored := r.load(r.slots[1], slices.Concat(history[:14], tokenRange(4, 20)), true)
	require.Equal(t, 14, restored.Held)
	require.Equal(t, 3, restored.Tokens)
	r.drain()
	r.model.requireRows(t, 1, slices.Concat(history[:14], tokenRange(4, 20)))
}

// TestALostPageBesideItsSibling: a page that only begins like a lost page does not count as that
// page, which is stored again.
func TestALostPageBesideItsSibling(t *testing.T) {
	store := newMemStore(t)
	history := tokenRange(1, 60)
	r := newFakeRunner(t, store, 2, 128, Options{})
	r.run(r.slots[0], history, nil, true)
	r.save(r.slots[1], slices.Concat(history[:45], tokenRange(2, 20)))
	lost := store.pageAt(history[:48])
	store.mu.Lock()
	delete(store.pages, lost)
	store.mu.Unlock()
	r.save(r.slots[0], slices.Concat(history, tokenRange(3, 20)))
	require.Contains(t, store.pages, lost)
}

// TestTailsOfARequest: a request that ends inside a page writes its rows there once. Where a
// sequence cannot be cut at any position, the end of the prompt is written as well.
func TestTailsOfARequest(t *testing.T) {
	for name, c := range map[string]struct {
		start startRunner
		tails int
	}{"plain": {newFakeRunner, 1}, "window": {newWindowedRunner, 2}} {
		t.Run(name, func(t *testing.T) {
			r, store := newStored(t, c.start, 1, 128, Options{})
			prompt := tokenRange(1, 19)
			r.run(r.slots[0], prompt, tokenRange(2, 3), true)
			r.flush()
			tails := 0
			for _, of := range store.tails {
				tails += len(of)
			}
			require.Equal(t, c.tails, tails)
			again := c.start(t, store, 1, 128, Options{})
			require.Equal(t, len(prompt)-1, again.load(again.slots[0], prompt, true).Held, "the prompt alone")
		})
	}
}

// TestFlushDuringAnAnswer: a runner that is stopped in the middle of an answer stores the prompt
// and the answer so far.
func TestFlushDuringAnAnswer(t *testing.T) {
	withAndWithoutWindow(t, func(t *testing.T, start startRunner) {
		r, store := newStored(t, start, 1, 128, Options{})
		prompt := tokenRange(1, 19)
		r.begin(r.slots[0], prompt, true)
		r.slots[0].rest = inputsOf(tokenRange(2, 1))
		r.drain()
		r.flush()
		again := start(t, store, 1, 128, Options{})
		require.Equal(t, len(prompt)-1, again.load(again.slots[0], prompt, true).Held)
	})
}
