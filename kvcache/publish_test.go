package kvcache

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// wrongRows counts the positions that the next token of a sequence attends to and whose rows
// do not follow from the tokens.
func (m fakeModel) wrongRows(seq int, tokens []int32) int {
	wrong := 0
	for pos := range tokens {
		right := true
		for _, c := range m.caches {
			if pos < len(tokens)-int(c.window) {
				continue
			}
			cell, ok := c.cellOf(seq, int32(pos))
			for s, n := range c.sections() {
				right = right && ok && slices.Equal(wantRows(s, c.window, tokens[:pos+1], n)[pos], c.row(s, cell))
			}
		}
		if !right {
			wrong++
		}
	}
	return wrong
}

// The restore of a slot that holds the beginning of a prompt fails and is tried again.
// During the second attempt, after the window was given up, another request forks the tokens
// that the runner believes the slot holds, and computes on them.
func TestASlotIsNotForkedFromRowsThatAreBeingReplaced(t *testing.T) {
	store := newMemStore(t)
	prompt := tokenRange(1, 60)
	first := newWindowedRunner(t, store, 1, 128, Options{})
	first.run(first.slots[0], prompt, nil, true)
	first.tiered.Close()

	r := newWindowedRunner(t, store, 2, 128, Options{Poison: true})
	r.run(r.slots[0], prompt[:38], nil, false)
	store.readErr = map[int]error{5: errors.New("input/output error")}
	forked := append(slices.Clone(prompt[:38]), tokenRange(2, 9)...)
	held := -1
	var failed, forking atomic.Bool
	store.onRead = func(page int) {
		if page == 5 {
			failed.Store(true)
		} else if page == 0 && failed.Load() && forking.CompareAndSwap(false, true) { // the second attempt
			held = r.fork(r.slots[1], forked)
			r.begin(r.slots[1], forked, false)
		}
	}
	r.load(r.slots[0], prompt, false)
	store.onRead = nil
	require.GreaterOrEqual(t, held, 0, "nothing was restored for the second time")
	require.Zero(t, r.model.wrongRows(1, forked), "of %d rows of a request that began with %d of the other's", len(forked), held)
	r.drain()
	r.model.requireRows(t, 0, prompt)
}

// A page that a restore reads counts as stored, even if the queue gave up the same page
// during the restore.
func TestAPageReadAfterItWasGivenUpIsStored(t *testing.T) {
	store := newMemStore(t)
	prompt := tokenRange(1, 40)
	first := newFakeRunner(t, store, 1, 128, Options{})
	first.run(first.slots[0], prompt, nil, true)
	first.tiered.Close()
	given := first.tiered.slots.of[0].keys[1]

	store.below = map[int]bool{1: true}
	r := newFakeRunner(t, store, 1, 128, Options{})
	q := r.tiered.queue
	store.onRead = func(page int) {
		if page == 3 {
			q.mu.Lock()
			q.dropped = append(q.dropped, given)
			q.mu.Unlock()
		}
	}
	r.run(r.slots[0], prompt, nil, true)
	require.Equal(t, int64(1), r.tiered.Stats().DroppedPages)
	require.Zero(t, r.tiered.Stats().SealedPages, "a page was stored that had just been read")
}
