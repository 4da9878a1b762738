package kvcache

import (
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Slots that load one prompt at the same time each get all of it, although the store reads
// each page once for concurrent readers.
func TestSlotsRestoreOnePromptTogether(t *testing.T) {
	const slots, tokens = 4, 100
	store := newDiskStore(t, filepath.Join(t.TempDir(), "pages"))
	r := newFakeRunner(t, store, slots, 128, Options{Poison: true})
	prompt := tokenRange(1, tokens)
	r.run(r.slots[0], prompt, nil, true)
	r.run(r.slots[0], tokenRange(2, 9), nil, true) // another prompt takes the slot
	r.flush()

	before := store.Stats()
	var together sync.WaitGroup
	held := make([]int, slots)
	for i := range slots {
		together.Add(1)
		go func() {
			defer together.Done()
			held[i] = r.load(r.slots[i], prompt, true).Held
		}()
	}
	together.Wait()
	for i := range slots {
		require.Equal(t, tokens-1, held[i])
		r.cache.requireRows(t, i, prompt[:tokens-1])
	}
	st := store.Stats()
	require.EqualValues(t, slots*(tokens/8+1), st.Hits-before.Hits)
	t.Logf("%d of %d reads were shared", st.SharedHits-before.SharedHits, st.Hits-before.Hits)
}
