package kvcache

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/kvcache/runs"
)

var errRefused = errors.New("writes are refused")

// setFail makes the store refuse all pages, or none.
func (s *memStore) setFail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = err
}

// lose removes a full page, as eviction or quarantine does.
func (s *memStore) lose(start int) (lost int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, page := range s.pages {
		if int(page.Start) == start {
			delete(s.pages, key)
			lost++
		}
	}
	return lost
}

// clock is a clock that tests move.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) time() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// withClock gives a runner's queue a clock that tests move.
func withClock(r *fakeRunner) *clock { return r.tiered.queue.withClock() }

func (q *writeQueue) withClock() *clock {
	c := &clock{now: time.Now()}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.now = c.time
	return c
}

func (r *fakeRunner) settle() { require.NoError(r.t, r.tiered.queue.wait(r.t.Context())) }

// restarted is the number of tokens of a prompt that a fresh server restores from the store.
func restarted(t *testing.T, store *memStore, prompt []int32) int {
	r := newFakeRunner(t, store, 1, 256, Options{Poison: true})
	held := r.load(r.slots[0], append(slices.Clone(prompt), 9), true).Held
	r.cache.requireRows(t, 0, prompt[:held])
	r.tiered.Close()
	return held
}

// refused computes texts, each in a slot of its own, while the store refuses every page.
// Afterwards the store still refuses pages.
func (r *fakeRunner) refused(store *memStore, texts ...[]int32) {
	store.setFail(errRefused)
	for i, text := range texts {
		r.run(r.slots[i], text, nil, true)
	}
	r.settle()
}

// refusing begins a runner whose store refuses the pages of texts.
func refusing(t *testing.T, slots int, texts ...[]int32) (*fakeRunner, *memStore, *clock) {
	r, store := newStored(t, newFakeRunner, slots, 256, Options{})
	clock := withClock(r)
	r.refused(store, texts...)
	return r, store, clock
}

// Writes are refused for one turn; later turns store the missing pages, without a flush.
func TestAFailedWriteIsTriedAgain(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 256, Options{})
	clock := withClock(r)
	text := tokenRange(1, 50)
	store.setFail(errRefused)
	r.run(r.slots[0], text, []int32{7}, true)
	r.settle()
	require.Empty(t, store.pages)

	store.setFail(nil)
	for turn := range 10 {
		clock.add(retryFirst)
		text = append(text, tokenRange(2+turn, 15)...)
		r.keep(r.slots[0], text)
	}
	require.Equal(t, len(text), restarted(t, store, text))
}

// The flush stores pages that were refused shortly before the runner ends.
func TestAFlushTriesAgain(t *testing.T) {
	text, other := tokenRange(1, 50), tokenRange(2, 50)
	r, store, _ := refusing(t, 2, text, other)
	store.setFail(nil)
	r.flush()
	require.Equal(t, 50, restarted(t, store, text), "with its tail")
	require.Equal(t, 50, restarted(t, store, other))
}

// An idle slot is stored while another slot computes.
func TestAnIdleSlotIsStoredBesideAnother(t *testing.T) {
	text := tokenRange(1, 50)
	r, store, clock := refusing(t, 2, text)
	store.setFail(nil)
	clock.add(retryFirst)
	r.keep(r.slots[1], tokenRange(2, 9))
	require.Equal(t, 50, restarted(t, store, text))
}

// A page that can never be written does not keep other pages from being stored.
func TestAPageThatCannotBeWrittenHoldsNoOtherBack(t *testing.T) {
	store := newMemStore(t)
	store.failing = map[int]error{1: errRefused}
	r := newFakeRunner(t, store, 1, 256, Options{})
	clock := withClock(r)
	text := tokenRange(1, 50)
	for turn := range 4 {
		r.keep(r.slots[0], text)
		clock.add(retryAfter)
		text = append(text, tokenRange(2+turn, 15)...)
	}
	require.Equal(t, 8, restarted(t, store, text[:90]))
	store.mu.Lock()
	store.failing = nil
	store.mu.Unlock()
	clock.add(retryAfter)
	r.keep(r.slots[0], text)
	require.Equal(t, len(text), restarted(t, store, text), "only the missing page was written")
}

// A page that has moved to a tier in which Has does not look counts as stored: it is not
// written again when another page was lost, by a failed write or by the store.
func TestOnlyWhatWasLostIsStoredAgain(t *testing.T) {
	for name, lose := range map[string]func(r *fakeRunner, store *memStore, clock *clock, text []int32){
		"a write failed": func(r *fakeRunner, store *memStore, clock *clock, text []int32) {
			store.failing = map[int]error{2: errRefused}
			r.keep(r.slots[0], text)
			for all := false; !all; { // again, when pages that were left alone are stored
				all = len(store.pages) == 5
				r.next(clock)
			}
		},
		"the store lost one": func(r *fakeRunner, store *memStore, _ *clock, text []int32) {
			r.keep(r.slots[0], text)
			require.Equal(t, 1, store.lose(16))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, store := newStored(t, newFakeRunner, 1, 256, Options{})
			clock, text := withClock(r), tokenRange(1, 50)
			lose(r, store, clock, text)
			store.mu.Lock()
			store.failing, store.wrote = nil, nil
			store.below = map[int]bool{0: true, 1: true, 3: true, 4: true, 5: true}
			store.mu.Unlock()
			clock.add(retryAfter) // the queue may look at once
			r.keep(r.slots[0], text)
			require.Equal(t, []int{2}, store.wrote)
			require.Equal(t, 50, restarted(t, store, text))
		})
	}
}

// The tail of a finished request is written again after a failure, also in a model with state.
func TestAFailedTailIsTriedAgain(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 256, Options{})
	clock := withClock(r)
	text := tokenRange(1, 21)
	r.begin(r.slots[0], text, true)
	r.settle()
	store.setFail(errRefused)
	r.finish(r.slots[0])
	r.slots[0].inUse, r.slots[0].rest = true, inputsOf([]int32{5})
	r.complete(r.slots[0])
	r.settle()
	store.setFail(nil)
	clock.add(retryFirst)
	r.flush()
	require.Equal(t, 22, restarted(t, store, append(slices.Clone(text), 5)))
}

// The index offers no text of a page that was never stored.
func TestRunsForgetWhatWasNotStored(t *testing.T) {
	store := newMemStore(t)
	index := runs.New(8, 100)
	r := newFakeRunner(t, store, 1, 256, Options{Runs: index})
	store.setFail(errRefused)
	text := tokenRange(1, 50)
	r.keep(r.slots[0], text)
	require.Empty(t, index.Find(text, 100))
	store.setFail(nil)
	r.flush()
	require.NotEmpty(t, index.Find(text, 100))
}

// A page known to lack rows of a window is written again until it has these rows.
func TestAPartialPageIsReplacedThoughThatFailsAtFirst(t *testing.T) {
	r, store := newStored(t, newWindowedRunner, 1, 256, Options{})
	clock := withClock(r)
	key := pagefile.ChainKey(store.root, tokenRange(1, 8), nil)
	text := tokenRange(1, 12)
	r.keep(r.slots[0], text)
	r.tiered.mu.Lock()
	r.tiered.partial.add(key)
	clear(r.tiered.slots.of[0].pages)
	r.tiered.mu.Unlock()
	r.refused(store, text)
	require.True(t, r.tiered.partial.has(key))
	store.setFail(nil)
	clock.add(retryFirst)
	before := store.putCount()
	r.keep(r.slots[0], text)
	require.Greater(t, store.putCount(), before)
	require.Empty(t, r.tiered.partial.keys)
}

// After a failed batch nothing more is copied out of the cache.
func TestFlushingWhatIsSealedCopiesNothing(t *testing.T) {
	r, store, _ := refusing(t, 1, tokenRange(1, 50))
	store.setFail(nil)
	sealed := r.tiered.Stats().SealedPages
	tight(r)
	require.NoError(t, r.tiered.FlushSealed(t.Context()))
	require.Equal(t, sealed, r.tiered.Stats().SealedPages)
	require.Len(t, store.pages, int(sealed), "sealed pages are stored")
}

// fire fires the pending timer, and waits for queued pages.
func (r *fakeRunner) fire() {
	r.t.Helper()
	require.True(r.t, r.timers.fire())
	r.settle()
}

// next moves the clock to the pending timer, fires it, and returns the time that it waited for.
func (r *fakeRunner) next(c *clock) time.Duration {
	r.t.Helper()
	wait, set := r.timers.set()
	require.True(r.t, set)
	c.add(wait)
	r.fire()
	return wait
}

// timers stands for a queue's timer, which fires when a test calls fire.
type timers struct {
	mu      sync.Mutex
	pending func()
	wait    time.Duration
}

// withTimers gives a queue timers that never fire by themselves.
func withTimers(q *writeQueue) *timers {
	c := &timers{}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.after = c.after
	return c
}

func (c *timers) after(d time.Duration, f func()) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending, c.wait = f, d
	return c.stop
}

func (c *timers) stop() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	stopped := c.pending != nil
	c.pending = nil
	return stopped
}

// set returns the duration of the pending timer, and whether there is one.
func (c *timers) set() (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wait, c.pending != nil
}

// fire calls the pending timer's function. fire reports whether there was a timer.
func (c *timers) fire() bool {
	c.mu.Lock()
	f := c.pending
	c.pending = nil
	c.mu.Unlock()
	if f != nil {
		f()
	}
	return f != nil
}

// A server without requests stores refused pages as soon as the store may be tried again,
// and goes on trying after failures.
func TestAnIdleServerWritesAgain(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 2, 256, Options{})
	clock := withClock(r)
	text, other := tokenRange(1, 50), tokenRange(2, 45)
	r.keep(r.slots[0], text[:20])
	_, set := r.timers.set()
	require.False(t, set, "nothing failed")

	r.refused(store, text, other)
	for pause := retryFirst; pause <= 4*retryFirst; pause *= 2 {
		wait, set := r.timers.set()
		require.True(t, set)
		require.Equal(t, pause, wait)
		clock.add(wait)
		if pause == 4*retryFirst {
			store.setFail(nil)
		}
		r.fire()
	}
	r.wake()
	require.Equal(t, 50, restarted(t, store, text), "with its tail")
	require.Equal(t, 45, restarted(t, store, other))
}

// wake fires timers that are due at once until no timer is set.
func (r *fakeRunner) wake() {
	r.t.Helper()
	for {
		wait, set := r.timers.set()
		if !set {
			return
		}
		require.LessOrEqual(r.t, wait, time.Duration(0))
		r.timers.fire()
		r.settle()
	}
}

// A store that goes on failing is tried with one page, less and less often. All pages are
// written once the store takes that page.
func TestAnIdleServerLooksBeforeItCopies(t *testing.T) {
	text, other := tokenRange(1, 50), tokenRange(2, 45)
	r, store, clock := refusing(t, 2, text, other)
	fire := func(wait time.Duration) (tried int) {
		before := store.putCount()
		clock.add(wait) // the writer may look at the clock at any time
		copied := countedOf(r)
		r.fire()
		require.Equal(t, copied, countedOf(r), "nothing is copied for these attempts")
		return store.putCount() - before
	}
	for pause, tries := retryFirst, 0; tries < 2; pause = min(2*pause, retryIdle) {
		wait, set := r.timers.set()
		require.True(t, set)
		require.Equal(t, pause, wait)
		require.EqualValues(t, 1, fire(wait), "after %v", pause)
		if pause == retryIdle {
			tries++
		}
	}
	store.setFail(nil)
	clock.add(retryIdle)
	r.fire()
	r.wake()
	require.Equal(t, 50, restarted(t, store, text), "with its tail")
	require.Equal(t, 45, restarted(t, store, other))

	r.refused(store, append(slices.Clone(text), tokenRange(3, 10)...))
	wait, _ := r.timers.set()
	require.Equal(t, retryFirst, wait, "the pause is short again")
}

// An idle server tries the store with more pages than one that can never be written.
func TestAnIdleServerLooksWithAnotherPage(t *testing.T) {
	store := newMemStore(t)
	store.failing = map[int]error{0: errRefused, 2: errRefused}
	r := newFakeRunner(t, store, 1, 256, Options{})
	clock := withClock(r)
	r.refused(store, tokenRange(1, 50))
	store.setFail(nil)
	for range 12 {
		r.next(clock)
	}
	var stored []int
	for _, page := range store.pages {
		stored = append(stored, int(page.Start)/8)
	}
	require.ElementsMatch(t, []int{1, 3, 4, 5}, stored)
}

// A request whose pages are written ends the pause for other slots' pages.
func TestAWrittenPageEndsTheIdlePause(t *testing.T) {
	text := tokenRange(1, 50)
	r, store, clock := refusing(t, 2, text)
	for range 8 {
		r.next(clock)
	}
	wait, _ := r.timers.set()
	require.Greater(t, wait, retryAfter)
	store.setFail(nil)
	clock.add(retryAfter)
	r.keep(r.slots[1], tokenRange(2, 9))
	r.wake()
	require.Equal(t, 50, restarted(t, store, text))
}

// Pages that found no room in the queue are stored when the queue is empty, without another batch.
func TestAnIdleServerStoresWhatFoundNoRoom(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 256, Options{})
	text := tokenRange(1, 50)
	tight(r)
	r.keep(r.slots[0], text)
	require.Empty(t, store.pages)
	q := r.tiered.queue
	q.mu.Lock()
	q.bytes = 0
	q.armLocked() // as when the last page is written
	q.mu.Unlock()
	r.fire()
	require.Equal(t, 50, restarted(t, store, text))
}

// While a batch is built nothing is copied out, because a copy would wait for the device.
// The copy follows when the batch is done.
func TestWritingAgainWaitsForABatch(t *testing.T) {
	text := tokenRange(1, 50)
	r, store, clock := refusing(t, 2, text)
	store.setFail(nil)
	clock.add(retryFirst)

	r.load(r.slots[1], tokenRange(2, 5), false)
	require.True(t, r.build())
	require.True(t, r.launch())
	copied := countedOf(r)
	require.True(t, r.timers.fire())
	require.Equal(t, copied, countedOf(r))
	r.compute()
	r.settle()
	require.Equal(t, 50, restarted(t, store, text))
}

// A store that fails again before the timer fires is tried later.
func TestWritingAgainIsPutOff(t *testing.T) {
	text := tokenRange(1, 50)
	r, store, clock := refusing(t, 1, text)
	clock.add(retryFirst / 2)
	r.flush() // tries at once, and fails
	clock.add(retryFirst / 2)
	store.setFail(nil)
	r.fire()
	require.Empty(t, store.pages)
	r.next(clock)
	r.wake()
	require.Equal(t, 50, restarted(t, store, text))
}

// A closed cache is not read any more, even if the timer has just fired.
func TestNothingIsWrittenAgainAfterClose(t *testing.T) {
	for name, fires := range map[string]bool{"stopped": false, "too late to stop": true} {
		t.Run(name, func(t *testing.T) {
			r, store := newStored(t, newFakeRunner, 1, 256, Options{})
			withClock(r)
			store.setFail(errRefused)
			r.keep(r.slots[0], tokenRange(1, 50))
			if !fires {
				r.tiered.Close()
				require.False(t, r.timers.fire())
				return
			}
			r.timers.mu.Lock()
			late := r.timers.pending
			r.timers.pending = nil
			r.timers.mu.Unlock()
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				r.tiered.Close()
			}()
			<-r.tiered.queue.stopped
			copied := countedOf(r)
			late()
			<-closed
			require.Equal(t, copied, countedOf(r))
			require.False(t, r.timers.fire())
		})
	}
}
