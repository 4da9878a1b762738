package kvcache

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// putStore is a store that reports the pages put into it.
type putStore struct {
	Store
	puts chan uint32 // first positions of the pages
}

func (s putStore) Put(ctx context.Context, p *pagefile.Page) error {
	s.puts <- p.Start
	return nil
}

func newYieldingQueue(t *testing.T) (q *writeQueue, puts chan uint32, push func(start uint32)) {
	puts = make(chan uint32, 8)
	q = newWriteQueue(putStore{puts: puts}, queuedBytes, func(*writeJob, error) {}, func() {})
	t.Cleanup(func() { require.NoError(t, q.close(context.Background())) })
	return q, puts, func(start uint32) {
		q.push(pagefile.Key{byte(start)}, &pagefile.Page{Start: start, Payload: make([]byte, 8)}, false, nil)
	}
}

// requireYields checks whether the queue yields to restores.
func requireYields(t *testing.T, q *writeQueue, yields bool) {
	t.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	require.Equal(t, yields, q.yieldsLocked())
}

func TestSavingYieldsToRestores(t *testing.T) {
	q, puts, push := newYieldingQueue(t)
	push(1)
	require.EqualValues(t, 1, <-puts)
	q.yield(1)
	q.yield(1)
	push(2)
	requireYields(t, q, true)
	q.yield(-1)
	requireYields(t, q, true)
	require.True(t, q.has(pagefile.Key{2}))
	q.yield(-1)
	require.EqualValues(t, 2, <-puts, "the last restore is over")
}

func TestSavingDoesNotYieldForLong(t *testing.T) {
	q, puts, push := newYieldingQueue(t)
	clock := q.withClock()
	q.yield(1)
	push(1)
	requireYields(t, q, true)
	clock.add(yieldMax)
	q.lookAgain() // as the timer does
	require.EqualValues(t, 1, <-puts)
	push(2)
	require.EqualValues(t, 2, <-puts, "nor later, while restores go on")
	q.yield(-1)
	q.yield(1)
	requireYields(t, q, true)
	q.yield(-1)
}

func TestSavingDoesNotYieldWhenItIsWaitedFor(t *testing.T) {
	q, puts, push := newYieldingQueue(t)
	q.yield(1)
	defer q.yield(-1)
	push(1)
	require.NoError(t, q.wait(t.Context()))
	require.EqualValues(t, 1, <-puts)
	push(2)
	requireYields(t, q, true)
}

func TestSavingDoesNotYieldWhenThereIsNoRoom(t *testing.T) {
	q, puts, push := newYieldingQueue(t)
	q.yield(1)
	defer q.yield(-1)
	push(1)
	require.NotNil(t, q.stage(int(q.staging())-8, false), "there is room")
	requireYields(t, q, true)
	require.Nil(t, q.stage(int(q.staging()), false))
	require.EqualValues(t, 1, <-puts, "a page found no room, so the queue writes")
	push(2)
	q.mu.Lock()
	for q.refused { // until the first page is finished
		q.changed.Wait()
	}
	q.mu.Unlock()
	requireYields(t, q, true)
}

// A page that fails keeps no other page from being stored, even a large one: the queue bounds the
// failed pages to a quarter of its room, and other pages need not fit in the rest.
func TestAFailedPageLeavesRoomForALargeOne(t *testing.T) {
	store := newMemStore(t)
	store.fail = errRefused
	q := newWriteQueue(store, 64, func(*writeJob, error) {}, func() {})
	withTimers(q)
	q.withClock()
	q.push(pagefile.Key{1}, &pagefile.Page{Payload: make([]byte, 16)}, false, nil)
	require.NoError(t, q.wait(t.Context()))
	require.NotNil(t, q.stage(48, false))
	require.True(t, q.has(pagefile.Key{1}))
	require.NotNil(t, q.stage(49, false))
	require.Equal(t, []pagefile.Key{{1}}, q.takeDropped())
	require.NoError(t, q.close(t.Context()))
}

// Every queued page is written in the end, even during restores.
func TestClosingWritesWhatRestoresHeldBack(t *testing.T) {
	puts := make(chan uint32, 8)
	q := newWriteQueue(putStore{puts: puts}, queuedBytes, func(*writeJob, error) {}, func() {})
	q.yield(1)
	q.push(pagefile.Key{1}, &pagefile.Page{Start: 1, Payload: make([]byte, 8)}, false, nil)
	require.NoError(t, q.close(t.Context()))
	require.EqualValues(t, 1, <-puts)
	q.yield(-1)
}

func TestRestoresHoldSavingBack(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 128, Options{})
	prompt := tokenRange(1, 60)
	r.leave(prompt)
	readers := 0
	store.onRead = func(int) {
		r.tiered.queue.mu.Lock()
		defer r.tiered.queue.mu.Unlock()
		readers = max(readers, r.tiered.queue.reading)
	}
	require.Equal(t, 59, r.load(r.slots[0], prompt, true).Held)
	require.Equal(t, 1, readers)
	require.Zero(t, r.tiered.queue.reading)
}
