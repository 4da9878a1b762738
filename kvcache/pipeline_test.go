package kvcache

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/engine"
)

// A restore reads as many pages at a time as it has room for, and no more. The restore
// writes pages in the order of the chain even if the first page is read last.
func TestRestoreReadsAhead(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{Poison: true})
	prompt := tokenRange(1, 100)
	r.leave(prompt)

	var mu sync.Mutex
	begun, furthest := 0, 0
	all := make(chan struct{})
	store.onRead = func(page int) {
		mu.Lock()
		begun++
		furthest = max(furthest, page)
		if begun == engine.PagesAtOnce {
			assert.Equal(t, engine.PagesAtOnce-1, furthest)
			close(all)
		}
		mu.Unlock()
		if page == 0 {
			<-all // reads of the other pages have begun, and may have ended
		}
	}
	require.Equal(t, 99, r.load(r.slots[0], prompt, true).Held)
	r.cache.requireRows(t, 0, prompt[:99])
}

// Restores of all sizes follow each other.
func TestRestoresOfAllSizes(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 1, 128, Options{})
	for _, n := range []int{60, 5, 17, 100, 3} {
		r.run(r.slots[0], tokenRange(n, n), nil, true)
	}
	r.run(r.slots[0], tokenRange(1, 9), nil, true)
	r.flush()
	for range 3 {
		for _, n := range []int{60, 5, 17, 100, 3} {
			r.finish(r.slots[0])
			require.Equal(t, n-1, r.load(r.slots[0], tokenRange(n, n), true).Held)
			r.cache.requireRows(t, 0, tokenRange(n, n)[:n-1])
		}
	}
}
