package kvcache

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// badPage returns an error for the page at position 24 of the text tokenRange(1, …).
func badPage(p *pagefile.Page) error {
	if p.Start == 24 && p.Tokens[0] == 1024 {
		return errRefused
	}
	return nil
}

// pass moves the clock, and fires timers when they are due. pass returns the number of fired timers.
func (r *fakeRunner) pass(c *clock, d time.Duration) (fired int) {
	r.t.Helper()
	end := c.time().Add(d)
	for {
		r.settle()
		q := r.tiered.queue
		q.mu.Lock()
		at := q.wakeAt
		q.mu.Unlock()
		if _, set := r.timers.set(); !set || at.After(end) {
			c.add(end.Sub(c.time()))
			return fired
		}
		c.add(max(0, at.Sub(c.time())))
		r.timers.fire()
		fired++
	}
}

// A page that cannot be written makes no other conversation lose pages, not even in the
// pauses between attempts.
func TestABadPageLosesNoOther(t *testing.T) {
	for _, each := range []time.Duration{200 * time.Millisecond, 500 * time.Millisecond, 900 * time.Millisecond, 1500 * time.Millisecond} {
		r, store := newStored(t, newFakeRunner, 2, 256, Options{})
		store.refuse = badPage
		clock := withClock(r)
		r.run(r.slots[0], tokenRange(1, 50), nil, true)
		for i := range 20 {
			r.run(r.slots[1], tokenRange(100+i, 50), nil, true)
			r.pass(clock, each)
		}
		r.flush()
		for i := range 20 {
			require.Equal(t, 50, restarted(t, store, tokenRange(100+i, 50)), "conversation %d, one every %v", i, each)
		}
	}
}

// A page that cannot be written is tried less and less often, even if other pages are written, and
// costs the device nothing. In the end the page is given up, until its slot is used again.
func TestABadPageIsTriedLessAndLess(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 4, 256, Options{})
	store.refuse = badPage
	clock := withClock(r)
	for i, slot := range r.slots {
		r.run(slot, tokenRange(1+i, 50), nil, true)
	}
	r.settle()
	copied, puts := countedOf(r), store.putCount()
	require.LessOrEqual(t, r.pass(clock, 10*time.Minute), 12)
	require.LessOrEqual(t, store.refused, 12)
	r.tiered.queue.mu.Lock()
	pause := r.tiered.queue.outage.pause
	r.tiered.queue.mu.Unlock()
	require.Zero(t, pause, "one page that fails again and again is no outage")
	r.pass(clock, 30*24*time.Hour)
	require.Equal(t, triesMax, store.refused)
	require.Equal(t, copied, countedOf(r))
	require.Equal(t, puts, store.putCount())
	require.False(t, r.tiered.queue.has(r.tiered.slots.of[0].keys[3]))
	r.run(r.slots[0], append(tokenRange(1, 50), 7), nil, true)
	require.Equal(t, 1, int(r.tiered.Stats().DroppedPages))
	r.settle()
	require.Equal(t, triesMax+1, store.refused)
}

// Pages of finished slots that were left in the cache during an outage are queued when the first
// page is written, also those that no timer has asked for since.
func TestTheEndOfAnOutageBringsAllPages(t *testing.T) {
	q := newWriteQueue(newMemStore(t), queuedBytes, func(*writeJob, error) {}, func() {})
	timers := withTimers(q)
	clock := q.withClock()
	q.mu.Lock()
	q.outage = outage{pause: retryFirst, tried: clock.time(), until: clock.time().Add(retryFirst)}
	q.mu.Unlock()
	clock.add(retryFirst)
	q.push(pagefile.Key{1}, &pagefile.Page{Parent: pagefile.Key{2}}, false, nil)
	require.NoError(t, q.wait(t.Context()))
	wait, set := timers.set()
	require.True(t, set)
	require.LessOrEqual(t, wait, time.Duration(0))
	require.NoError(t, q.close(t.Context()))
}

// Rows that leave the cache while the store fails are kept, and stored when the store works again.
func TestWhatLeavesInAnOutageIsKept(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 256, Options{})
	clock := withClock(r)
	store.setFail(errRefused)
	for i := range 5 {
		r.keep(r.slots[0], tokenRange(1+i, 50))
	}
	store.setFail(nil)
	r.pass(clock, retryAfter)
	for i := range 5 {
		require.Equal(t, 50, restarted(t, store, tokenRange(1+i, 50)), "conversation %d", i)
	}
}

// The queue is bounded even with a slow disk. Pages that find no room are counted.
func TestWhatLeavesHasABound(t *testing.T) {
	store := newMemStore(t)
	store.hold = make(chan struct{})
	r := newFakeRunner(t, store, 1, 256, Options{QueuedBytes: 64 << 10})
	for i := range 50 {
		r.run(r.slots[0], tokenRange(100+i, 200), nil, true)
		r.checkInvariants(t)
	}
	require.Positive(t, r.tiered.Stats().DroppedPages)
	close(store.hold)
	r.settle()
	reached := 0
	for i := range 50 {
		reached += restarted(t, store, tokenRange(100+i, 200)) / 8
	}
	store.mu.Lock()
	defer store.mu.Unlock()
	require.GreaterOrEqual(t, reached, len(store.pages), "pages were stored that cannot be found")
}

// crowding is the position of a page that fills the queue.
const crowding = 1 << 20

// A flush waits for room that somebody else's pages take at that moment.
func TestAFlushWaitsForRoom(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 256, Options{QueuedBytes: 64 << 10})
	q := r.tiered.queue
	store.setFail(errors.New("no disk yet"))
	r.run(r.slots[0], tokenRange(1, 50), nil, true)
	require.NoError(t, q.wait(t.Context()))
	store.setFail(nil)
	left := 5
	q.mu.Lock()
	q.now = func() time.Time { // called with q.mu held, among others before a slot's page finds room
		free := r.tiered.mu.TryLock()
		if free {
			r.tiered.mu.Unlock()
		} else if len(q.jobs) == 0 && left > 0 {
			left--
			job := &writeJob{key: pagefile.Key{9, byte(left)}, page: &pagefile.Page{Start: crowding, Payload: make([]byte, 64<<10)}}
			q.jobs, q.bytes = append(q.jobs, job), q.bytes+job.bytes()
			q.changed.Broadcast()
		}
		return time.Now()
	}
	q.mu.Unlock()
	r.flush()
	require.Zero(t, left)
	require.Equal(t, 50, restarted(t, store, tokenRange(1, 50)))
}

// Failed pages make room for rows that leave the cache; pages not tried yet do not.
func TestWhatLeavesComesBeforeWhatFailed(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 2, 256, Options{})
	store.refuse = badPage
	withClock(r)
	r.keep(r.slots[0], tokenRange(1, 50))
	q := r.tiered.queue
	require.Len(t, q.jobs, 1)
	key := q.jobs[0].key
	q.mu.Lock()
	q.most = q.bytes
	q.mu.Unlock()
	require.NotNil(t, q.stage(8, true))
	require.False(t, q.has(key))
	require.Equal(t, []pagefile.Key{key}, q.takeDropped())
	require.Zero(t, q.bytes)
}

// When the store has no room, a page is tried once. Pages that continue it are not copied out, nothing
// is tried while the slot is idle, and a flush does not make the store evict pages.
func TestNoRoomIsNoOutage(t *testing.T) {
	for name, full := range map[string]error{"no space": tier.ErrNoSpace, "write cap": ledger.ErrWriteCap} {
		t.Run(name, func(t *testing.T) {
			r, store := newStored(t, newFakeRunner, 2, 256, Options{})
			store.refuse = func(p *pagefile.Page) error {
				if p.Start >= 24 && p.Tokens[0] < 2000 {
					return full
				}
				return nil
			}
			clock := withClock(r)
			r.keep(r.slots[0], tokenRange(1, 28))
			require.Equal(t, 1, store.refused)
			require.False(t, r.tiered.queue.suspended())

			copied := r.tiered.Stats().SealedPages
			r.run(r.slots[1], tokenRange(2, 50), nil, true)
			r.pass(clock, 24*time.Hour)
			require.Equal(t, 1, store.refused, "no timer")
			require.Equal(t, 50, restarted(t, store, tokenRange(2, 50)))
			require.EqualValues(t, 6, r.tiered.Stats().SealedPages-copied, "nor beside another slot")

			full := store.refuse
			store.refuse = nil
			r.flush()
			require.Equal(t, 1, store.ifRoom)
			require.Equal(t, 28, restarted(t, store, tokenRange(1, 28)))
			store.refuse = full
		})
	}
}

// Pages that continue a page given up wait for that page, and follow it in the same request.
func TestNothingFollowsAPageThatWasGivenUp(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 256, Options{})
	store.refuse = func(p *pagefile.Page) error {
		if p.Start == 8 {
			return tier.ErrNoSpace
		}
		return nil
	}
	withClock(r)
	slot := r.slots[0]
	r.keep(slot, tokenRange(1, 20))
	puts, dropped := store.putCount(), r.tiered.Stats().DroppedPages
	require.Equal(t, 1, store.refused)
	r.run(slot, tokenRange(1, 17), []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, true)
	r.settle()
	require.Greater(t, r.tiered.Stats().DroppedPages, dropped)
	require.LessOrEqual(t, store.putCount(), puts+1)
	store.refuse = nil
	r.keep(slot, tokenRange(1, 40))
	require.Equal(t, 40, restarted(t, store, tokenRange(1, 40)))
	require.Zero(t, store.ifRoom, "a request may make room")
}

// A fork takes over its source's stored pages, also those where Has does not look, and does
// not change the source's.
func TestAForkStoresNoPageAgain(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 2, 256, Options{})
	text := tokenRange(1, 50)
	r.keep(r.slots[0], text)
	store.below = map[int]bool{0: true, 1: true, 2: true, 3: true, 4: true, 5: true}
	fork := slices.Concat(text[:20], tokenRange(2, 20))
	require.Equal(t, 20, r.fork(r.slots[1], fork))
	r.run(r.slots[1], fork, nil, false)
	r.run(r.slots[1], fork[:20], nil, true)
	r.keep(r.slots[0], slices.Concat(text, tokenRange(3, 6)))
	require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6}, store.wrote)
}

// A request in a fork of a slot tries the slot's given-up pages again.
func TestAForkTriesAgainWhatWasGivenUp(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 2, 256, Options{})
	text := tokenRange(1, 50)
	store.failing = map[int]error{1: tier.ErrNoSpace}
	r.keep(r.slots[0], text)
	store.failing = nil
	fork := append(slices.Clone(text), 7)
	require.Equal(t, 50, r.fork(r.slots[1], fork))
	r.keep(r.slots[1], fork)
	require.Equal(t, 51, restarted(t, store, fork))
}

// Closing the cache stores pages that were refused shortly before the runner ends.
func TestClosingTriesAgain(t *testing.T) {
	for _, err := range []error{errRefused, tier.ErrTierDown, tier.ErrNoSpace} {
		t.Run(err.Error(), func(t *testing.T) {
			r, store := newStored(t, newFakeRunner, 1, 256, Options{})
			withClock(r)
			text := tokenRange(1, 50)
			store.setFail(err)
			r.keep(r.slots[0], text)
			require.Empty(t, store.pages)
			store.setFail(nil)
			r.tiered.Close()
			require.Equal(t, 50, restarted(t, store, text), "with its tail")
		})
	}
}

// A flush stores a state that was given up; a state that failed is stored when the failure is over.
func TestAStateThatWasNotStoredIsTriedAgain(t *testing.T) {
	for name, refused := range map[string]error{"failed": errRefused, "given up": tier.ErrNoSpace} {
		t.Run(name, func(t *testing.T) {
			store := newMemStore(t)
			r := newHybridRunner(t, store, Options{})
			clock := withClock(r.fakeRunner)
			store.setFail(refused)
			text := tokenRange(1, 21)
			r.keep(r.slots[0], text)
			store.setFail(nil)
			clock.add(retryAfter)
			r.flush()
			fresh := newHybridRunner(t, store, Options{})
			require.Equal(t, 21, fresh.load(fresh.slots[0], append(text, 9), true).Held)
		})
	}
}

// A page that lacks a window's rows stays marked until it is written with these rows.
func TestAPartialPageStaysPartial(t *testing.T) {
	r, store := newStored(t, newWindowedRunner, 1, 256, Options{})
	r.save(r.slots[0], tokenRange(1, 12))
	page := store.pages[r.tiered.slots.of[0].keys[0]]
	require.NotNil(t, page)
	layout, err := r.tiered.caches.layout(8, func(g int) bool { return g == 0 })
	require.NoError(t, err)
	key := pagefile.Key{7}
	r.tiered.partial.add(key)
	r.tiered.wrote(&writeJob{key: key, page: &pagefile.Page{Layout: layout}}, nil)
	require.True(t, r.tiered.partial.has(key))
	r.tiered.wrote(&writeJob{key: key, page: page}, nil)
	require.Empty(t, r.tiered.partial.keys)
}

// A prompt waits only for queued pages that it continues.
func TestAPromptWaitsForItsOwnPages(t *testing.T) {
	store := newMemStore(t)
	store.hold = make(chan struct{})
	r := newFakeRunner(t, store, 2, 256, Options{})
	r.run(r.slots[0], tokenRange(1, 50), nil, true)
	waits := func(tokens []int32, have int) bool {
		return r.tiered.queue.any(extends(&prompt{tokens: tokens}, 8, have, store.root, 0))
	}
	require.True(t, waits(tokenRange(1, 60), 0))
	require.True(t, waits(tokenRange(1, 60), 49))
	require.False(t, waits(tokenRange(1, 60), 50), "the slot has all these pages")
	require.False(t, waits(tokenRange(2, 60), 0), "another text")
	require.False(t, waits(append(tokenRange(2, 8), tokenRange(1, 50)[8:]...), 0), "another beginning")
	r.load(r.slots[1], tokenRange(2, 20), true)
	close(store.hold)
}

func TestCloseWaitsForNoDiskThatHangs(t *testing.T) {
	var lines strings.Builder
	r, store := newStored(t, newFakeRunner, 1, 256, Options{Logger: slog.New(slog.NewTextHandler(&lines, nil))})
	in, out := make(chan struct{}), make(chan struct{})
	store.refuse = func(*pagefile.Page) error {
		close(in)
		<-out // a system call does not end with a context
		return context.Canceled
	}
	r.run(r.slots[0], tokenRange(1, 8), nil, true)
	<-in
	r.tiered.closeIn, r.tiered.queue.stopIn = 0, 0
	r.tiered.Close()
	require.Contains(t, lines.String(), "not all stored")
	close(out)
	<-r.tiered.queue.stopped
}

// giant is a conversation longer than the budget of giantStore.
var giant = tokenRange(1, 1000)

func giantStore(t *testing.T, dir string) *diskstore.Store {
	return newDiskStore(t, dir, func(o *diskstore.Options) { o.Local.BudgetBytes = 600 << 10 })
}

// whole counts the conversations that a store has completely.
func whole(t *testing.T, s *diskstore.Store, conversations int) (n int) {
	for i := range conversations {
		held := 0
		for _, ref := range s.Find(t.Context(), diskstore.Prompt{Tokens: tokenRange(10+2*i, 40)}).Exact {
			held += ref.Tokens
		}
		if held == 40 {
			n++
		}
	}
	return n
}

// An idle conversation that does not fit in the budget is not stored at the cost of others.
func TestAnIdleGiantEvictsNoOther(t *testing.T) {
	store := giantStore(t, filepath.Join(t.TempDir(), "local"))
	r := newFakeRunner(t, store, 2, 1100, Options{})
	clock := withClock(r)
	r.keep(r.slots[0], giant)
	before := store.Stats()
	for i := range 8 {
		r.run(r.slots[1], tokenRange(10+2*i, 40), nil, true)
		r.pass(clock, 10*time.Second)
	}
	r.pass(clock, time.Hour)
	require.NoError(t, store.Flush(t.Context()))
	require.GreaterOrEqual(t, whole(t, store, 8), 4, "of 5 that the budget holds, and may be trimmed")
	require.EqualValues(t, 40, store.Stats().Puts-before.Puts)
	require.Equal(t, before.PutErrors, store.Stats().PutErrors)
}

// Neither a timer nor a flush of the giant's process evicts pages of another process on the same root.
func TestAnIdleGiantEvictsNothingOfAnotherProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "local")
	one, two := giantStore(t, dir), giantStore(t, dir)
	r1, r2 := newFakeRunner(t, one, 1, 1100, Options{}), newFakeRunner(t, two, 1, 256, Options{})
	clock := withClock(r1)
	r1.run(r1.slots[0], giant, nil, true)
	r1.settle()
	require.NoError(t, one.Flush(t.Context())) // collections that these pages caused have ended
	before := one.Stats()
	for i := range 4 {
		r2.run(r2.slots[0], tokenRange(10+2*i, 40), nil, true)
		r2.settle()
		r1.pass(clock, 70*time.Second)
		r1.flush()
	}
	require.NoError(t, two.Flush(t.Context()))
	require.Equal(t, 4, whole(t, two, 4))
	require.Equal(t, before.Evicted, one.Stats().Evicted)
}

// describe tells the state of the queue.
func (q *writeQueue) describe() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	text := fmt.Sprintf("queue of %d bytes, refused %v, crowded %v, short %v, outage until %v, dropped %d, now %v", q.bytes, q.refused, q.crowded, q.short, q.outage, len(q.dropped), q.now())
	for _, job := range q.jobs {
		text += fmt.Sprintf("; page at %d, %d tries, due %v, ifRoom %v", job.page.Start, job.tries, job.due, job.ifRoom)
	}
	return text
}
