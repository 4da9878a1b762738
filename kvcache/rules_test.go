package kvcache

import (
	"math"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// The ordering rules of the runner, one test each. The rule that a test is named after is in
// docs/architecture.md. The device computes as late as it may.

// A batch of a finished sequence is built, the sequence's slot is loaded again, and the
// batch then writes into cells that the restore has taken.
func TestRuleWritesWaitForBatches(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 1, 128, Options{})
	slot, old := r.slots[0], tokenRange(1, 50)
	r.run(slot, old, nil, true)
	r.save(slot, tokenRange(2, 30))

	// the next token of an ending sequence is in a batch that is built already
	slot.inUse, slot.rest = true, inputsOf([]int32{7})
	require.True(t, r.build())
	r.finish(slot)

	flying := true
	r.cache.onWrite = func() {
		if flying {
			t.Error("a row was written while a batch that may use its cell was in flight")
		}
	}
	waits, landed := r.watchIdle(), make(chan struct{})
	go func() {
		defer close(landed)
		<-waits
		r.launch()
		flying = false
		r.compute()
	}()
	restored := r.load(slot, old, true)
	<-landed
	require.Equal(t, 49, restored.Held)
	r.cache.requireRows(t, slot.id, old[:49])
}

// Two batches are built when a restore takes cells, and both may use these cells: the
// restore must wait for the second.
func TestRuleWritesWaitForTheLastBatch(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 2, 128, Options{})
	slot, other, old := r.slots[0], r.slots[1], tokenRange(1, 50)
	r.run(slot, old, nil, true)
	r.run(slot, tokenRange(2, 30), nil, true)
	r.begin(other, tokenRange(3, 5), false)
	r.flush()

	other.rest = inputsOf([]int32{8})
	require.True(t, r.build())
	slot.inUse, slot.rest = true, inputsOf([]int32{7})
	require.True(t, r.build())
	r.finish(slot)

	var flying atomic.Bool
	flying.Store(true)
	r.cache.onWrite = func() {
		if flying.Load() {
			t.Error("a row was written while a batch that may use its cell was in flight")
		}
	}
	waiting, loaded := r.watchIdle(), make(chan Restored, 1)
	go func() { loaded <- r.load(slot, old, true) }()
	<-waiting
	waits := r.device.waits()
	r.compute()
	require.Equal(t, waits, r.device.waits(), "the device was waited for too early")
	r.tiered.mu.Lock()
	require.Len(t, r.tiered.inFlight.idle, 1, "the restore no longer waits")
	r.tiered.mu.Unlock()
	r.launch()
	flying.Store(false)
	r.compute()
	require.Equal(t, 49, (<-loaded).Held)
	r.cache.requireRows(t, slot.id, old[:49])
}

// The runner reports a batch without outputs done without waiting for the device.
func TestRuleReadsSynchronizeFirst(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{})
	r.load(r.slots[0], tokenRange(1, 50), true)
	for r.build() {
		r.compute()
	}
	r.finish(r.slots[0])
	r.flush()
	store.requireRight(t) // rows that were read too early are old rows
	require.Equal(t, int64(6), r.tiered.Stats().SealedPages)
}

// Cells are noted when a batch is built, and rows are copied when the batch is done. Rows do not exist
// when the batch is built, and cells may belong to another sequence when the batch is done.
func TestRuleWhenRowsAreNotedAndCopied(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{})
	slot := r.slots[0]
	r.load(slot, tokenRange(1, 9), true)
	require.True(t, r.build())
	require.Empty(t, store.pages, "sealed before it was computed")

	// the batch's outputs are ready; the next batch is built, has taken cells, and is not computed
	slot.rest = inputsOf(tokenRange(5, 10))
	require.True(t, r.build())
	r.compute()
	require.NoError(t, r.tiered.queue.wait(t.Context()))
	require.Len(t, store.pages, 1)
	r.compute()
	r.flush()
	require.Len(t, store.pages, 2) // the store checked the pages' rows
}

// Complete pages are copied out before a slot's cells are freed, even with a full queue.
func TestRuleRemovalLosesNothing(t *testing.T) {
	store := newMemStore(t)
	store.hold = make(chan struct{})
	r := newFakeRunner(t, store, 1, 256, Options{})
	slot := r.slots[0]
	tight(r)
	prompt := tokenRange(1, 200)
	r.run(slot, prompt, nil, true)
	require.Less(t, r.tiered.slots.at(slot.id).stored(), 25, "the queue was meant to be full")

	require.NoError(t, r.tiered.Remove(slot.id, 0, math.MaxInt32))
	slot.inputs = nil
	r.load(slot, tokenRange(2, 20), true) // overwrites the cells before any page is stored
	r.drain()
	close(store.hold)
	r.flush()
	require.GreaterOrEqual(t, len(store.pages), 25)
	require.Equal(t, 199, r.reload(slot, prompt).Held)
}

// reload ends a slot's request and loads a prompt.
func (r *fakeRunner) reload(slot *fakeSlot, prompt []int32) Restored {
	r.finish(slot)
	return r.load(slot, prompt, true)
}

// tight fills the queue so that only leaving rows find room.
func tight(r *fakeRunner) {
	r.tiered.queue.mu.Lock()
	defer r.tiered.queue.mu.Unlock()
	r.tiered.queue.bytes = r.tiered.queue.staging()
}

// Rows that a shift discards are stored first, rows that a shift moves are never stored
// again, and the last page, complete only with the batch in flight, is not lost.
func TestRuleRemovalShiftSealsFirstAndTaints(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 48, Options{})
	slot := r.slots[0]
	prompt := tokenRange(1, 47)
	r.begin(slot, prompt, true)
	slot.rest = inputsOf([]int32{500})
	require.True(t, r.build()) // position 47, in flight, completes the context's last page

	r.shift(slot, 4, 20)
	slot.rest = inputsOf(tokenRange(6, 20))
	r.drain() // the shifted slot completes pages, which may not be stored (the store checks rows)
	r.finish(slot)
	r.flush()
	require.Len(t, store.pages, 6, "all pages of the unshifted context, and none of the shifted context")

	whole := append(slices.Clone(prompt), 500)
	restored := r.run(slot, append(whole, 501)[:48], nil, true)
	require.Equal(t, 47, restored.Held)
	r.cache.requireRows(t, slot.id, whole[:47])
}

// An in-flight batch that lands after its slot was cut adds nothing past the cut.
func TestRuleRemovalCutsBatches(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{})
	slot := r.slots[0]
	r.begin(slot, tokenRange(1, 22), true)
	slot.rest = inputsOf(tokenRange(8, 3)) // would complete the third page
	require.True(t, r.build())
	r.finish(slot)
	other := append(tokenRange(1, 20), tokenRange(9, 30)...)
	r.mu.Lock()
	require.NoError(t, r.tiered.Remove(slot.id, 20, math.MaxInt32))
	slot.inputs = slot.inputs[:20]
	r.mu.Unlock()
	r.compute()
	require.Len(t, r.tiered.slots.at(slot.id).tokens, 20)
	slot.inUse, slot.rest = true, inputsOf(other[20:])
	r.drain()
	r.flush()
	r.cache.requireRows(t, slot.id, other)
	require.Len(t, store.pages, 6)
}

// A restore that does not fit takes no cell and leaves the slot as it was.
func TestRuleBudgetIsCheckedFirst(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{})
	prompt := tokenRange(1, 60)
	r.save(r.slots[0], prompt)

	small := newFakeRunner(t, store, 1, 40, Options{})
	used := func() (n int) {
		for i := range small.cache.cells {
			if !small.cache.free(i) {
				n++
			}
		}
		return n
	}
	restored := small.load(small.slots[0], prompt, true)
	require.Zero(t, restored.Held)
	require.Zero(t, used())
}

// An image's rows do not follow from tokens: rows from the image on are neither stored nor restored.
func TestRuleIdentityStopsAtAnImage(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{})
	slot := r.slots[0]
	prompt := inputsOf(tokenRange(1, 40))
	prompt[18].MultimodalHash = 42
	r.load(slot, tokenRange(1, 1), true)
	slot.rest = prompt[len(slot.inputs):]
	r.complete(slot)
	r.flush()
	require.Len(t, store.pages, 2)
	for _, tails := range store.tails {
		for _, tail := range tails {
			require.LessOrEqual(t, int(tail.Start)+len(tail.Tokens), 18)
		}
	}
}

// The store refuses a page that is asked for with other tokens, and the page is computed.
func TestRuleIdentityTokensMustMatch(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{})
	prompt := tokenRange(1, 40)
	r.leave(prompt)
	third := pagefile.ChainKey(store.pages[pagefile.ChainKey(store.root, prompt[:8], nil)].Parent, prompt[:8], nil)
	store.pages[pagefile.ChainKey(third, prompt[8:16], nil)].Tokens[3]++
	restored := r.load(r.slots[0], prompt, true)
	require.Equal(t, 8, restored.Held, "pages before the refused page are kept")
	r.drain()
	r.cache.requireRows(t, 0, prompt)
}

// A batch without outputs is still on the device when the runner reports it done, and writes to cells
// that Remove has freed since. A restore that takes these cells waits for the device.
func TestRuleWritesWaitForTheDevice(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 1, 128, Options{})
	slot, old := r.slots[0], tokenRange(1, 50)
	r.save(slot, old)

	r.load(slot, tokenRange(2, 30), false)
	require.True(t, r.build())
	r.compute() // the prompt goes on: nothing is sampled, and the runner does not wait
	require.NotEmpty(t, r.device.queue)
	r.finish(slot)

	require.Equal(t, 49, r.load(slot, old, true).Held)
	r.cache.requireRows(t, slot.id, old[:49])
}

// A restore makes room in a window by freeing cells that no slot needs any more. A batch
// that was reported done and is still on the device attends to these cells.
func TestRuleWritesWaitForTheDeviceThatReadsAWindow(t *testing.T) {
	r, store := newStored(t, newWindowedRunner, 2, 128, Options{})
	slot, old := r.slots[0], tokenRange(1, 50)
	r.save(slot, old)
	r = newWindowedRunner(t, store, 2, 128, Options{})
	slot, other := r.slots[0], r.slots[1]

	prompt := tokenRange(2, 60)
	r.load(other, prompt, false)
	for range 2 {
		require.True(t, r.build())
		r.compute()
	}
	require.NotEmpty(t, r.device.queue)
	require.Equal(t, 49, r.load(slot, old, true).Held)
	r.model.requireRows(t, slot.id, old[:49])
	r.drain()
	r.model.requireRows(t, other.id, prompt)
}

// Upstream's own work outside batches: a shifted slot is emptied while the device still
// rotates its rows.
func TestRuleWritesWaitForAShiftOnTheDevice(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 1, 64, Options{})
	slot, old := r.slots[0], tokenRange(1, 60)
	r.save(slot, old)
	slot.inUse = true
	r.shift(slot, 4, 20)
	require.NotEmpty(t, r.device.queue)
	r.finish(slot)
	require.Equal(t, 59, r.load(slot, old, true).Held)
	r.cache.requireRows(t, slot.id, old[:59])
}

// A restore does not queue for the backend's lock while a batch computes: on a CPU the next
// batch would be delayed.
func TestRuleWritesWaitBetweenBatches(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 2, 128, Options{})
	old := tokenRange(1, 50)
	r.run(r.slots[0], old, nil, true)
	r.run(r.slots[0], tokenRange(2, 9), nil, false)
	r.flush()
	r.load(r.slots[1], tokenRange(3, 60), false)
	require.True(t, r.build())
	require.True(t, r.launch())

	var computing atomic.Bool
	computing.Store(true)
	r.device.onSync = func() {
		if computing.Load() {
			t.Error("the restore waited for the backend while a batch computed")
		}
	}
	waits := r.watchIdle()
	loaded := make(chan Restored, 1)
	r.finish(r.slots[0])
	go func() { loaded <- r.load(r.slots[0], old, false) }()
	select {
	case <-waits:
	case <-loaded:
		t.Fatal("the restore did not wait for the device")
	}
	require.True(t, r.build())
	computing.Store(false)
	r.compute()
	require.Equal(t, 49, (<-loaded).Held)
	r.cache.requireRows(t, 0, old[:49])
	r.drain()
}

// The wrapper waits for a device once per restore only: other waits would let the device's
// queue run empty. On the host's own processors, which have computed a batch that is done,
// the wrapper waits once for the rows of a batch.
func TestTheDeviceIsSeldomWaitedFor(t *testing.T) {
	var store *memStore
	prompt := tokenRange(1, 130)
	for host, waits := range map[bool]int{false: 0, true: 11} {
		store = newMemStore(t)
		r := newFakeRunner(t, store, 2, 256, Options{})
		r.device.host = host
		r.save(r.slots[0], prompt)
		require.Equal(t, waits, r.device.waits(), "of 11 batches of 12 tokens, each of which completes a page or two")
		require.LessOrEqual(t, r.device.marks, 11)
	}

	r := newFakeRunner(t, store, 2, 256, Options{})
	r.run(r.slots[1], tokenRange(2, 63), []int32{901, 902, 903}, false)
	require.Zero(t, r.device.waits(), "nothing is stored")
	require.Equal(t, 129, r.load(r.slots[0], prompt, false).Held)
	require.Equal(t, 1, r.device.waits())
	r.complete(r.slots[0])
	require.Equal(t, 1, r.device.waits(), "nothing is stored and nothing restored")
}
