package kvcache

import (
	"bytes"
	"log/slog"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
)

// Rows that a window has dropped: their cells are free, or hold other rows.

// overwritten is a runner of two slots whose store refuses all pages until recovered is
// called. The first slot holds a text that ends in the middle of its prompt: its last batch
// landed after the request had ended. A batch of the second slot has then freed cells too
// far before the end of the first, and computed rows there.
func overwritten(t *testing.T) (r *fakeRunner, recovered func()) {
	store := newMemStore(t)
	r = newWindowedRunner(t, store, 2, 128, Options{})
	clock := withClock(r)
	store.setFail(errRefused)
	first, second := r.slots[0], r.slots[1]
	r.load(first, tokenRange(1, 60), true)
	for range 3 {
		require.True(t, r.build() && r.compute())
		r.settle() // after the first failure no page is copied
	}
	require.True(t, r.build())
	r.finish(first)
	require.True(t, r.compute())
	require.Empty(t, store.pages)

	r.load(second, tokenRange(2, 30), true)
	require.True(t, r.build() && r.compute())
	return r, func() {
		store.setFail(nil)
		clock.add(retryFirst)
	}
}

// requireStored checks that the rows of a text that were left are stored, and no others.
func requireStored(t *testing.T, r *fakeRunner, text []int32) {
	r.settle()
	store := r.tiered.opts.Store.(*memStore)
	store.requireRight(t)
	require.Len(t, store.Find(t.Context(), diskstore.Prompt{Parent: store.root, Tokens: text}).Exact, len(text)/8)
}

// A slot is stored late without rows that other slots' batches have freed: an idle one, and at the last
// moment one that another prompt takes, or that becomes a fork.
func TestLateRowsOfASlot(t *testing.T) {
	for name, leave := range map[string]func(r *fakeRunner){
		"idle":    func(r *fakeRunner) { require.True(t, r.build() && r.compute()) },
		"emptied": func(r *fakeRunner) { r.load(r.slots[0], tokenRange(3, 5), true) },
		"forked":  func(r *fakeRunner) { require.Equal(t, 12, r.fork(r.slots[0], tokenRange(2, 12))) },
	} {
		t.Run(name, func(t *testing.T) {
			r, recovered := overwritten(t)
			recovered()
			leave(r)
			requireStored(t, r, tokenRange(1, 48))
		})
	}
}

// A fork does not have rows that a batch built for its source has freed.
func TestLateRowsOfAFork(t *testing.T) {
	r, store := newStored(t, newWindowedRunner, 2, 128, Options{})
	clock := withClock(r)
	store.setFail(errRefused)
	r.load(r.slots[0], tokenRange(1, 70), true)
	for range 4 {
		require.True(t, r.build() && r.compute())
		r.settle()
	}
	require.True(t, r.build() && r.launch())
	store.setFail(nil)
	clock.add(retryFirst)
	text := tokenRange(1, 32)
	require.Equal(t, len(text), r.fork(r.slots[1], text))
	r.load(r.slots[1], tokenRange(2, 5), true)
	requireStored(t, r, text)
}

// TestAPageWithoutAWindowIsReplaced by a server that keeps all positions: a page that lacks rows
// cannot be read there, and is stored again.
func TestAPageWithoutAWindowIsReplaced(t *testing.T) {
	r, store := newStored(t, newWindowedRunner, 1, 128, Options{QueuedBytes: 1})
	text := tokenRange(1, 60)
	store.hold = make(chan struct{}) // the queue is full until the window has passed most pages
	r.begin(r.slots[0], text, true)
	close(store.hold)
	r.finish(r.slots[0])
	r.flush()
	r.tiered.Close()

	keeps := func() *fakeRunner {
		r := newFakeRunner(t, store, 1, 128, Options{})
		all := newFakeCache(129, 1)
		all.window, all.memory = fakeWindow, math.MaxInt32
		all.on(r.device)
		return r.of(all, r.cache)
	}
	again := keeps()
	require.Less(t, again.load(again.slots[0], text, true).Held, 59)
	again.complete(again.slots[0])
	again.flush()
	again.tiered.Close()
	last := keeps()
	require.Equal(t, 59, last.load(last.slots[0], text, true).Held)
}

// Where all layers have a window, pages that end before the window are not read.
func TestWindowsOnlyComeBack(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	r, store := newStored(t, newWindowOnlyRunner, 1, 128, Options{Logger: logger})
	text := tokenRange(1, 61)
	r.save(r.slots[0], text[:60])

	r = newWindowOnlyRunner(t, store, 1, 128, Options{Logger: logger, Poison: true})
	require.Equal(t, 60, r.load(r.slots[0], text, true).Held)
	require.Less(t, store.read[0], 3*8, "a page before the window was read")
	r.model.requireRows(t, 0, text[:60])
	require.Len(t, r.tiered.slots.of[0].keys, r.tiered.slots.of[0].stored(), "pages that were found count as stored")
	r.drain()
	r.model.requireRows(t, 0, text)
	require.Empty(t, log.String())
}

// A page without a row left in any window is not stored, and does not keep other pages from
// being stored.
func TestWindowsOnlyThatAreGone(t *testing.T) {
	var log bytes.Buffer
	r, store := newStored(t, newWindowOnlyRunner, 1, 128, Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))})
	clock := withClock(r)
	store.setFail(errRefused)
	text := tokenRange(1, 60)
	r.keep(r.slots[0], text[:36])
	store.setFail(nil)
	clock.add(retryFirst)
	r.save(r.slots[0], text)
	require.Zero(t, r.tiered.Stats().FailedCopies)

	r.save(r.slots[0], slices.Clone(text[:40])) // a window cannot go back: all tokens are computed
	require.Len(t, store.Find(t.Context(), diskstore.Prompt{Parent: store.root, Tokens: text}).Exact, 8, "seven pages and a tail")
}
