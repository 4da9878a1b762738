package kvcache

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

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
	r.run(r.slots[0], tokens, nil, true)
	r.flush()
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
