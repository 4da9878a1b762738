package kvcache

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/why"
)

// silentStore is a store on a disk that hangs in one operation until answer is called.
type silentStore struct {
	*memStore
	mu    sync.Mutex
	op    string
	over  chan struct{}
	calls map[string]int // that hung
}

func newSilentStore(t *testing.T) *silentStore {
	s := &silentStore{memStore: newMemStore(t), calls: make(map[string]int)}
	s.enter = s.wait
	return s
}

// hang lets an operation hang until answer is called.
func (s *silentStore) hang(op string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.op, s.over = op, make(chan struct{})
}

// answer ends the hanging, and returns when no operation is left behind.
func (s *silentStore) answer(r *fakeRunner) {
	s.mu.Lock()
	s.op = ""
	close(s.over)
	s.mu.Unlock()
	for r.tiered.store.Hangs() {
		runtime.Gosched()
	}
}

// hung counts the calls of an operation that hung.
func (s *silentStore) hung(op string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[op]
}

func (s *silentStore) wait(op string) {
	s.mu.Lock()
	hangs, over := s.op == op, s.over
	if hangs {
		s.calls[op]++
	}
	s.mu.Unlock()
	if hangs {
		<-over
	}
}

// TestADiskThatHangs: whichever operation hangs, requests are computed, few operations are left
// behind, and nothing is lost when the disk answers again.
func TestADiskThatHangs(t *testing.T) {
	for kind, start := range map[string]func(*silentStore) *fakeRunner{
		"attention": func(s *silentStore) *fakeRunner { return newFakeRunner(t, s, 1, 256, Options{Poison: true}) },
		"window": func(s *silentStore) *fakeRunner {
			return newWindowedRunner(t, s, 1, 256, Options{Poison: true})
		},
		"state": func(s *silentStore) *fakeRunner { return newHybridRunner(t, s, Options{Poison: true}).fakeRunner },
	} {
		for _, op := range []string{"put", "has", "find", "read"} {
			t.Run(kind+"/"+op, func(t *testing.T) {
				store := newSilentStore(t)
				r := start(store)
				first, second := tokenRange(1, 50), tokenRange(2, 50)
				r.run(r.slots[0], first, nil, true)
				r.keep(r.slots[0], second)
				store.lose(16)
				store.lose(24)

				patience, short := &r.tiered.store.Patience, time.Millisecond
				patience.Find, patience.Page, r.tiered.store.patience.queue = short, short, short
				store.hang(op)
				for range 3 {
					for _, text := range [][]int32{first, second} {
						r.run(r.slots[0], text, []int32{7, 8}, true)
						r.cache.requireRows(t, 0, append(slices.Clone(text), 7, 8))
					}
				}
				require.LessOrEqual(t, store.hung(op), engine.PagesAtOnce)
				patience.Find, patience.Page = time.Hour, time.Hour
				store.answer(r)
				for range 2 { // the first request finds the missing pages
					r.run(r.slots[0], first, nil, true)
					r.run(r.slots[0], second, nil, true)
				}
				r.flush()
				require.Positive(t, r.load(r.slots[0], first, true).Tokens)
				r.complete(r.slots[0])
			})
		}
	}
}

// answeringLock is the runner's lock of a restore during which a disk that hung answers again.
type answeringLock struct {
	sync.Locker
	answer func()
}

func (l answeringLock) Lock() {
	l.answer()
	l.Locker.Lock()
}

// TestNothingIsCopiedAgainAfterADiskHung, though the disk answers again before the restore goes on.
func TestNothingIsCopiedAgainAfterADiskHung(t *testing.T) {
	store := newSilentStore(t)
	r := newFakeRunner(t, store, 1, 256, Options{})
	text := tokenRange(1, 50)
	r.keep(r.slots[0], text)
	for _, op := range []string{"find", "has"} {
		store.lose(0)
		store.lose(8)
		patience := &r.tiered.store.Patience
		patience.Find = time.Millisecond
		store.hang(op)
		var once sync.Once
		r.lock = answeringLock{&r.mu, func() {
			once.Do(func() {
				patience.Find = time.Hour
				store.answer(r)
			})
		}}
		sealed := r.tiered.Stats().SealedPages
		r.keep(r.slots[0], text)
		require.Equal(t, sealed, r.tiered.Stats().SealedPages, op)
	}
	r.keep(r.slots[0], text)
	require.Equal(t, 50, restarted(t, store.memStore, text))
}

// TestABatchAsksNoStore: from the first batch of a request to the slot's next request, nothing
// waits for a store that hangs for good, with rows that stay and rows that leave.
func TestABatchAsksNoStore(t *testing.T) {
	store := newSilentStore(t)
	r := newFakeRunner(t, store, 2, 256, Options{})
	r.keep(r.slots[0], tokenRange(1, 50))
	store.lose(8)
	r.load(r.slots[0], append(tokenRange(1, 50), 5, 6, 7), true)
	for _, op := range []string{"put", "has", "find", "read"} {
		store.hang(op)
		r.slots[0].rest = append(r.slots[0].rest, inputsOf(tokenRange(3, 20))...)
		r.drain()
		close(store.over)
	}
	store.hang("has")
	r.shift(r.slots[0], 10, 20)
	r.complete(r.slots[0])
	r.tiered.healIdle()
	r.fork(r.slots[1], tokenRange(1, 30))
	require.Zero(t, store.hung("has"))
	close(store.over)
}

// TestAFlushOfADiskThatHangs ends when its time is over, and so does closing the cache.
func TestAFlushOfADiskThatHangs(t *testing.T) {
	store := newSilentStore(t)
	r := newFakeRunner(t, store, 1, 256, Options{})
	r.keep(r.slots[0], tokenRange(1, 50))
	r.tiered.store.patience.flush, r.tiered.store.patience.close = time.Millisecond, time.Millisecond
	store.hang("flush")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, r.tiered.Flush(ctx))
	store.answer(r)
	store.hang("close")
	r.tiered.Close()
	close(store.over)
}

// TestWhatWasFoundIsNotCopiedAgain, when it is computed because reading it takes longer. A
// damaged page is stored again.
func TestWhatWasFoundIsNotCopiedAgain(t *testing.T) {
	r, store, prompt := decided(t)
	learn(r.tiered.rates, time.Microsecond, time.Hour)
	sealed, puts := r.tiered.Stats().SealedPages, store.putCount()
	require.Zero(t, r.run(r.slots[0], prompt, nil, true).Held)
	r.flush()
	require.Equal(t, sealed, r.tiered.Stats().SealedPages)
	require.Equal(t, puts+1, store.putCount(), "the tail")

	r.keep(r.slots[0], tokenRange(2, 9))
	r.tiered.gate.Always = true
	store.memStore.mu.Lock() // a probe may still read
	store.readErr, store.setsAside, store.wrote = map[int]error{2: pagefile.ErrDamaged}, true, nil
	store.memStore.mu.Unlock()
	require.Equal(t, 16, r.run(r.slots[0], prompt, nil, true).Held)
	r.flush()
	require.Equal(t, []int{2}, store.wrote)
}

// foundAndLost is decided after a request for the prompt, which found its pages and computed them.
// The store has lost the third of them since.
func foundAndLost(t *testing.T) (*fakeRunner, *stuckStore, []int32) {
	r, store, prompt := decided(t)
	learn(r.tiered.rates, time.Microsecond, time.Hour)
	require.Zero(t, r.run(r.slots[0], prompt, nil, true).Held)
	r.flush()
	require.Equal(t, 1, store.lose(16))
	store.wrote = nil
	return r, store, prompt
}

// TestAFoundPageThatIsLostIsStoredAgain by the slot's next request, also when that request looks
// nothing up because the slot holds its prompt.
func TestAFoundPageThatIsLostIsStoredAgain(t *testing.T) {
	r, store, prompt := foundAndLost(t)
	r.save(r.slots[0], prompt)
	require.Equal(t, []int{2}, store.wrote)
}

// TestAPageFoundForAnEarlierRequestIsStoredAgain when a request computes it that looks nothing up:
// its answer is part of the earlier prompt.
func TestAPageFoundForAnEarlierRequestIsStoredAgain(t *testing.T) {
	r, store, prompt := foundAndLost(t)
	r.run(r.slots[0], prompt[:9], prompt[9:], true)
	r.keep(r.slots[0], tokenRange(3, 5))
	require.Contains(t, store.wrote, 2)
}

// TestAPageWrittenDuringALookUpIsNotLost: the look-up does not find it, and the queue does not
// have it any more.
func TestAPageWrittenDuringALookUpIsNotLost(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 1, 256, Options{})
	hold := make(chan struct{})
	store.hold = hold
	r.run(r.slots[0], tokenRange(1, 50), nil, true)
	sealed := r.tiered.Stats().SealedPages
	require.EqualValues(t, 6, sealed)
	written := sync.OnceFunc(func() {
		store.mu.Lock()
		store.hold = nil
		store.mu.Unlock()
		close(hold)
		r.settle()
	})
	store.found = func(context.Context, *diskstore.Found) { written() }
	r.run(r.slots[0], tokenRange(1, 50), nil, true)
	require.Equal(t, sealed, r.tiered.Stats().SealedPages)
}

// slowBuffers is a store whose reads of one page hang, and fill their buffer when the disk answers
// again.
type slowBuffers struct {
	*memStore
	page   int
	answer chan struct{}
	ended  chan struct{}
}

func (s *slowBuffers) Read(ctx context.Context, ref diskstore.Ref, tokens []int32, layout pagefile.Layout, into diskstore.Into) error {
	if int(ref.Start)/8 != s.page {
		return s.memStore.Read(ctx, ref, tokens, layout, into)
	}
	<-s.answer
	defer close(s.ended)
	for i := range into.Rows {
		into.Rows[i] = poison
	}
	return nil
}

// TestAHungReadWritesNoCells: when the disk answers again, its rows do not go to cells that hold
// computed ones by then.
func TestAHungReadWritesNoCells(t *testing.T) {
	silence(t)
	store := &slowBuffers{memStore: newMemStore(t), page: 2, answer: make(chan struct{}), ended: make(chan struct{})}
	r := newFakeRunner(t, store, 1, 256, Options{Poison: true})
	text := tokenRange(1, 50)
	r.run(r.slots[0], text, nil, true)
	r.keep(r.slots[0], tokenRange(2, 9))
	r.tiered.store.Patience.Page = 10 * time.Millisecond
	require.LessOrEqual(t, r.load(r.slots[0], text, true).Held, 16)
	r.complete(r.slots[0])

	close(store.answer)
	<-store.ended
	require.Eventually(t, func() bool { return !r.tiered.store.Hangs() }, time.Minute, time.Microsecond)
	r.cache.requireRows(t, 0, text)
}

// TestASlowDisk: what was found in time is read, and the prompt's cost has its cause.
func TestASlowDisk(t *testing.T) {
	r, store := newStored(t, newFakeRunner, 2, 128, Options{Recents: why.NewRecents()})
	text := tokenRange(1, 60)
	r.leave(text)
	store.found = func(ctx context.Context, f *diskstore.Found) {
		if len(f.Exact) > 2 { // the others are found when the time of a look-up is over
			<-ctx.Done()
			f.Exact = f.Exact[:2]
		}
	}
	r.tiered.store.Patience = engine.Patience{Look: time.Millisecond, Find: time.Hour, Page: time.Hour}
	r.run(r.slots[1], text, nil, true)
	r.requireMiss(telemetry.CauseTierDown, 16)
	require.False(t, r.tiered.store.Hangs())
	r.cache.requireRows(t, 1, text)
	require.EqualValues(t, 16, r.tiered.Stats().RestoredTokens)
}
