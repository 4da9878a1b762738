package kvcache

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
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

// countingStore counts concurrent reads. With together, the first read waits for the second.
type countingStore struct {
	*memStore
	together bool
	second   chan struct{}

	mu            sync.Mutex
	reads         int
	running, most int
	gentle        int
}

func (s *countingStore) Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) error {
	s.mu.Lock()
	s.reads++
	s.running++
	s.most = max(s.most, s.running)
	if into.Gently {
		s.gentle++
	}
	n := s.reads
	s.mu.Unlock()
	switch {
	case s.together && n == 1:
		<-s.second
	case s.together && n == 2:
		close(s.second)
	}
	err := s.memStore.Read(ctx, ref, tokens, layout, into)
	s.mu.Lock()
	s.running--
	s.mu.Unlock()
	return err
}

// A restore reads one page at a time while other slots compute, and otherwise several.
func TestARestoreLeavesProcessorsToOthers(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 2, 128, Options{})
	prompt := tokenRange(1, 60)
	r.run(r.slots[0], prompt, nil, true)
	r.tiered.Close()

	alone := &countingStore{memStore: store, together: true, second: make(chan struct{})}
	r = newFakeRunner(t, alone, 2, 128, Options{})
	require.Equal(t, 59, r.load(r.slots[0], prompt, true).Held)
	require.Greater(t, alone.most, 1)
	require.Zero(t, alone.gentle)

	beside := &countingStore{memStore: store}
	r = newFakeRunner(t, beside, 2, 128, Options{})
	r.load(r.slots[1], tokenRange(2, r.batch+9), true)
	require.True(t, r.build())
	waits, landed := r.watchIdle(), make(chan struct{})
	go func() {
		defer close(landed)
		<-waits     // the restore found the other slot computing
		r.build()   // and does so until its end
		r.compute() // lets the restore begin
	}()
	require.Equal(t, 59, r.load(r.slots[0], prompt, true).Held)
	<-landed
	require.Equal(t, 1, beside.most)
	require.Equal(t, beside.reads, beside.gentle)
	r.cache.requireRows(t, 0, prompt[:59])
}

// Slots that load one prompt at the same time each get all of it, although the store reads
// each page once for concurrent readers.
func TestSlotsRestoreOnePromptTogether(t *testing.T) {
	const slots, tokens = 4, 100
	store := newDiskStore(t, filepath.Join(t.TempDir(), "pages"))
	r := newFakeRunner(t, store, slots, 128, Options{Poison: true})
	prompt := tokenRange(1, tokens)
	r.run(r.slots[0], prompt, nil, true)
	r.save(r.slots[0], tokenRange(2, 9)) // another prompt takes the slot

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

// overlappingStore has begun to pass on every section before the first fails.
type overlappingStore struct{ Store }

func (s overlappingStore) Read(_ context.Context, _ diskstore.Ref, _ []int32, layout pagefile.Layout, into diskstore.Into) (err error) {
	buf := make([]byte, layout.Size())
	for i := range layout.Len() {
		if failed := into.Use(i, layout.Rows(buf, i)); failed != nil && err == nil {
			err = fmt.Errorf("read page: %w", failed)
		}
	}
	return err
}

// refusesOnce refuses the first rows.
type refusesOnce struct {
	Rows
	refused error
	times   int
}

func (r *refusesOnce) WriteRows(layer int, value bool, cells []int32, src []byte) error {
	if r.times++; r.times == 1 {
		return r.refused
	}
	return r.Rows.WriteRows(layer, value, cells, src)
}

// TestRowsThatCannotBeWrittenSayNothingOfThePage, also when other sections of it are written
// after them.
func TestRowsThatCannotBeWrittenSayNothingOfThePage(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{})
	tokens := tokenRange(1, 40)
	r.save(r.slots[0], tokens)
	refs := store.Find(t.Context(), diskstore.Prompt{Parent: store.root, Tokens: tokens}).Exact
	require.NotEmpty(t, refs)

	rows := &refusesOnce{Rows: r.tiered.caches.groups[0].Rows, refused: errors.New("no such cell")}
	r.tiered.caches.groups[0].Rows = rows
	r.tiered.store.Store = overlappingStore{store}
	p := plan{prompt: prompt{tokens: tokens}, refs: refs[:1], begin: []int{0}, end: 8, cells: [][]int32{{0, 1, 2, 3, 4, 5, 6, 7}}}
	pg := r.tiered.restorer.reader.readInto(t.Context(), &p, 0, false)
	require.ErrorIs(t, pg.write, rows.refused)
	require.NoError(t, pg.err)
	require.Greater(t, rows.times, 1)
	r.tiered.restorer.reader.drop(&p, &pg)
}
