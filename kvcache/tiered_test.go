package kvcache

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/ollama/ollama/model/input"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRestoreOddLengths(t *testing.T) {
	for _, n := range []int{2, 3, 7, 8, 9, 15, 16, 17, 50, 64, 65} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			r, store := newStored(t, newFakeRunner, 1, 128, Options{Poison: true})
			prompt := tokenRange(1, n)
			require.Zero(t, r.run(r.slots[0], prompt, []int32{1, 2, 3}, true).Tokens)
			r.tiered.Close()

			again := newFakeRunner(t, store, 1, 128, Options{Poison: true})
			restored := again.load(again.slots[0], prompt, true)
			require.Equal(t, n-1, restored.Held, "all except the token to sample from")
			again.cache.requireRows(t, 0, prompt[:n-1])
			again.drain()
			again.cache.requireRows(t, 0, prompt)
		})
	}
}

func TestContinuationAndBranches(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 1, 256, Options{})
	slot := r.slots[0]
	history := tokenRange(1, 37)
	r.run(slot, history, []int32{901, 902, 903, 904}, true)
	r.save(slot, tokenRange(2, 20)) // another chat takes the slot

	// the answer comes back with its last token retokenized
	next := append(append(slices.Clone(history), 901, 902, 903), tokenRange(3, 20)...)
	require.Equal(t, 40, r.run(slot, next, nil, true).Held)
	r.cache.requireRows(t, 0, next)
	r.flush()

	r.run(slot, tokenRange(2, 20), nil, true)
	branch := append(slices.Clone(history), tokenRange(4, 30)...)
	require.Equal(t, 37, r.run(slot, branch, nil, true).Held, "the end of the first prompt")
	r.cache.requireRows(t, 0, branch)
	r.flush()

	r.run(slot, tokenRange(2, 20), nil, true)
	require.Equal(t, len(next)-1, r.run(slot, next, nil, true).Held, "a regenerate")
	r.cache.requireRows(t, 0, next)
}

func TestPrivateRequestsStoreNothing(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 2, 256, Options{})
	slot := r.slots[0]
	public := tokenRange(1, 20)
	r.run(slot, public, nil, true)
	private := append(slices.Clone(public), tokenRange(2, 60)...)
	r.run(slot, private, []int32{5, 6, 7}, false)
	// a second private request shares more than the public text, and a slot is forked from its slot
	r.run(slot, append(slices.Clone(private), tokenRange(3, 30)...), nil, false)
	r.mu.Lock()
	r.tiered.CopyPrefix(0, 1, 70)
	r.slots[1].inputs = slot.inputs[:70]
	r.mu.Unlock()
	r.run(r.slots[1], append(slices.Clone(private[:70]), tokenRange(4, 9)...), nil, false)
	r.save(slot, tokenRange(5, 9)) // takes the slot: rows that leave must not be stored
	for _, page := range store.pages {
		require.NotContains(t, page.Tokens, int32(2000))
	}
	tokens := func() (n int) {
		for _, page := range store.pages {
			n += len(page.Tokens)
		}
		return n
	}
	require.Equal(t, 2*8+8, tokens(), "two public pages of the first prompt, one of the last prompt")

	// the same text in a public request is public
	r.save(r.slots[1], private)
	require.Equal(t, 10*8+8, tokens())
}

// Embeddings are computed in slots, too, and belong to no conversation.
func TestUntrackedSequencesAreNotStored(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 2, 128, Options{})
	b, batch := &fakeBatch{outputs: true}, input.Batch{}
	for seq, tokens := range [][]int32{tokenRange(1, 20), tokenRange(2, 20)} {
		b.inputs = append(b.inputs, inputsOf(tokens)...)
		for pos := range tokens {
			batch.Sequences, batch.Positions = append(batch.Sequences, seq), append(batch.Positions, int32(pos))
		}
	}
	r.mu.Lock()
	r.tiered.StartSequence(0, true)
	r.take(b, batch, func(seq int) bool { return seq == 0 }, func(int) bool { return true })
	r.mu.Unlock()
	require.True(t, r.compute())
	r.flush()
	require.Len(t, store.pages, 2)
	require.Empty(t, r.tiered.slots.at(1).tokens)
	for _, page := range store.pages {
		require.Less(t, page.Tokens[0], int32(2000))
	}
}

func TestForkedSlotsShareRows(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 2, 128, Options{})
	prompt := tokenRange(1, 30)
	r.load(r.slots[0], prompt, true)
	require.True(t, r.build())
	require.True(t, r.build())
	r.compute()

	// slot 1 is forked while the source's second batch is in flight
	r.mu.Lock()
	r.tiered.CopyPrefix(0, 1, 20)
	r.slots[1].inputs = slices.Clone(r.slots[0].inputs[:20])
	r.mu.Unlock()
	fork := append(slices.Clone(prompt[:20]), tokenRange(7, 30)...)
	r.begin(r.slots[1], fork, true)
	r.cache.requireRows(t, 0, prompt)
	r.cache.requireRows(t, 1, fork)
	require.Equal(t, fork, r.tiered.slots.at(1).tokens)
	r.finish(r.slots[0])
	r.finish(r.slots[1])
	r.flush()
	require.Len(t, store.pages, 3+4, "two shared pages are stored once")
}

func TestShiftedSlotIsReplacedByExactRows(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 64, Options{})
	slot := r.slots[0]
	prompt := tokenRange(1, 60)
	r.begin(slot, prompt, true)
	r.shift(slot, 8, 24)
	r.finish(slot)
	shifted := tokensOf(slot.inputs)
	r.flush()

	// the shifted text as a prompt of its own, stored by an undisturbed server
	other := newFakeRunner(t, store, 1, 64, Options{})
	other.run(other.slots[0], append(slices.Clone(shifted), 77), nil, true)
	other.flush()

	restored := r.load(slot, append(slices.Clone(shifted), 77), true)
	require.Equal(t, len(shifted), restored.Held)
	r.cache.requireRows(t, 0, shifted)
}

func TestReadFailureKeepsWhatIsIn(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{})
	prompt := tokenRange(1, 60)
	r.leave(prompt)
	store.readErr = map[int]error{3: errors.New("input/output error")}
	restored := r.load(r.slots[0], prompt, true)
	require.Equal(t, 24, restored.Held)
	r.drain()
	r.cache.requireRows(t, 0, prompt)
	for pos := range prompt {
		cell, _ := r.cache.cellOf(0, int32(pos))
		require.Equal(t, r.tiered.slots.at(0).cells[0][pos], cell)
	}
}

func TestDamagedChainIsExaminedWhole(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{})
	prompt := tokenRange(1, 60)
	r.leave(prompt)
	store.readErr = map[int]error{1: pagefile.ErrDamaged}
	require.Equal(t, 8, r.load(r.slots[0], prompt, true).Held)
	require.Equal(t, 8, store.reads, "the pages after the damaged one were read, too")

	r.finish(r.slots[0])
	r.save(r.slots[0], tokenRange(2, 9))
	before := store.reads
	store.readErr = map[int]error{1: errors.New("the remote does not answer")}
	require.Equal(t, 8, r.load(r.slots[0], prompt, true).Held)
	require.LessOrEqual(t, store.reads-before, 1+engine.PagesAtOnce, "after a failure no further page is read from the tier")
}

// Attention without flash attention multiplies the rows of free cells by zero, and NaN times zero
// is NaN: the answer is empty.
func TestAFailedRestoreLeavesNoPoison(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{Poison: true})
	prompt := tokenRange(1, 60)
	r.leave(prompt)
	store.readErr = map[int]error{1: pagefile.ErrDamaged}
	require.Equal(t, 8, r.load(r.slots[0], prompt, true).Held)
	for of, rows := range r.cache.rows {
		require.NotContains(t, string(rows), strings.Repeat("\xff", 8), "section %v", of)
	}
}

func TestCancelledRestoreLeavesTheSlotUsable(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{})
	prompt := tokenRange(1, 60)
	r.leave(prompt)

	ctx, cancel := context.WithCancel(t.Context())
	store.onRead = func(page int) {
		if page == 2 {
			cancel()
		}
	}
	slot := r.slots[0]
	r.mu.Lock()
	require.NoError(t, r.tiered.Remove(0, 0, math.MaxInt32))
	restored, err := r.restore(ctx, &r.mu, 0, 0, inputsOf(prompt), func(int) {})
	slot.inputs = inputsOf(prompt[:restored.Held])
	r.mu.Unlock()
	require.ErrorIs(t, err, context.Canceled)
	store.onRead = nil
	r.run(slot, prompt, nil, true)
	r.cache.requireRows(t, 0, prompt)
}

func TestFailingStoreNeverFailsARequest(t *testing.T) {
	store := newMemStore(t)
	store.fail = errors.New("no space left on device")
	r := newFakeRunner(t, store, 1, 128, Options{})
	now := withClock(r)
	prompt := tokenRange(1, 60)
	for range 3 {
		r.run(r.slots[0], prompt, []int32{1, 2}, true)
		r.cache.requireRows(t, 0, prompt)
		r.run(r.slots[0], tokenRange(2, 60), nil, true)
	}
	r.flush()
	require.Less(t, store.puts, 10, "a store that just failed is left alone")

	store.setFail(nil)
	now.add(2 * retryAfter)
	r.save(r.slots[0], tokenRange(3, 60))
	require.Len(t, store.pages, 21, "rows that left the cache meanwhile are stored, too")
}

func TestFlushWaitsForTheLastBatch(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{})
	slot := r.slots[0]
	r.begin(slot, tokenRange(1, 20), true)
	slot.rest = inputsOf([]int32{9})
	require.True(t, r.build())
	r.finish(slot)

	flushed := make(chan error, 1)
	go func() { flushed <- r.tiered.Flush(t.Context()) }()
	r.compute()
	require.NoError(t, <-flushed)
	require.Len(t, store.tails, 1)
	for _, tails := range store.tails {
		require.Len(t, tails[len(tails)-1].Tokens, 21-16)
	}
}

// A runner that ends because a batch failed stores the pages sealed before, and waits for no
// batch: the failed batch never lands.
func TestFlushSealedWaitsForNoBatch(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{})
	slot := r.slots[0]
	r.begin(slot, tokenRange(1, 36), true)
	slot.rest = inputsOf(tokenRange(200, 20))
	require.True(t, r.build())

	waits, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.tiered.Flush(waits), context.Canceled, "the test has a batch that does not land")
	require.NoError(t, r.tiered.FlushSealed(t.Context()))
	require.Len(t, store.pages, 4, "the full pages of landed batches")
	r.compute()
}

func TestIncompleteCacheIsLeftAlone(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{})
	r.cache.layers = 1 // the reservation failed for one of two layers
	r.save(r.slots[0], tokenRange(1, 40))
	require.Empty(t, store.pages)
	r.cache.layers = 2
	r.save(r.slots[0], tokenRange(2, 40))
	require.Len(t, store.pages, 5)
}

func TestCloseIsBoundedAndClosesEverything(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{})
	r.run(r.slots[0], tokenRange(1, 40), nil, true)
	r.tiered.Close()
	require.True(t, store.closed)
	require.True(t, r.cache.closed)
	require.Len(t, store.pages, 5, "queued pages are stored first")
}

// The rest of a slot that was cut for the next request is not a tail: the request goes on
// from there. A batch of the request before may land after the cut.
func TestACutSlotSavesNoTail(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 1, 128, Options{})
	slot := r.slots[0]
	r.load(slot, tokenRange(1, 20), true)
	require.True(t, r.build() && r.compute() && r.build())
	r.finish(slot)
	r.cut(slot.id, 18)
	saved := r.tiered.Stats().SealedTails
	require.True(t, r.compute())
	require.Len(t, r.tiered.slots.of[0].tokens, 18)
	require.Equal(t, saved, r.tiered.Stats().SealedTails)
}

func TestTextAfterAnEmbeddingIsStored(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{})
	text := tokenRange(1, 40)
	r.embed(r.slots[0], text[:3])
	r.save(r.slots[0], text)
	require.Len(t, store.pages, 5)
}
