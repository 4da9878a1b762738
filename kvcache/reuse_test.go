package kvcache

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	ollama "github.com/ollama/ollama/kvcache"
	"github.com/ollama/ollama/model/input"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/kvcache/runs"
)

// newReusingRunner is a runner with a conversation of 60 tokens in its store, and an empty slot.
func newReusingRunner(t *testing.T, start startRunner) (*fakeRunner, *memStore, []int32) {
	r, store := newStored(t, start, 2, 128, Options{Runs: runs.New(8, 100), Poison: true})
	history := tokenRange(1, 60)
	r.leave(history)
	return r, store, history
}

// leftOut is the history without tokens [from, to), with new tokens at the end.
func leftOut(history []int32, from, to int) []int32 {
	return slices.Concat(history[:from], history[to:], tokenRange(3, 7))
}

// requireMoved checks that a slot's rows are the history's rows from a position on, with K rotated.
func requireMoved(t *testing.T, r *fakeRunner, seq int, history []int32, at, from, n int) {
	r.device.later(func() { requireMovedNow(t, r, seq, history, at, from, n) })
}

func requireMovedNow(t *testing.T, r *fakeRunner, seq int, history []int32, at, from, n int) {
	for g, c := range r.model.caches {
		for s, size := range c.sections() {
			rows := wantRows(s, c.window, history, size)
			for i := max(0, n-int(min(c.window, 1000))); i < n; i++ {
				want := slices.Clone(rows[from+i])
				if !s.value {
					turnRow(want, int32(at-from))
				}
				cell, ok := c.cellOf(seq, int32(at+i))
				require.True(t, ok, "cache %d has no cell for position %d", g, at+i)
				require.Equal(t, want, c.row(s, cell), "cache %d position %d layer %d value %v", g, at+i, s.layer, s.value)
			}
		}
	}
}

func TestHistoryThatMovedIsTurned(t *testing.T) {
	withAndWithoutWindow(t, func(t *testing.T, start startRunner) {
		r, store, history := newReusingRunner(t, start)
		pages, tails := len(store.pages), len(store.tails)
		prompt := leftOut(history, 13, 30)
		restored := r.load(r.slots[0], prompt, true)
		require.Equal(t, 43, restored.Held, "8 in a page, 5 of the next, and 30 to the end at another position")
		require.Equal(t, 43, restored.Tokens)
		require.Equal(t, 30, restored.Shifted)
		if !store.windowed {
			r.model.requireRows(t, 0, prompt[:13])
		}
		requireMoved(t, r, 0, history, 13, 30, 30)
		r.complete(r.slots[0])
		r.flush()
		require.Len(t, store.pages, pages, "rows after moved text are not stored")
		require.Len(t, store.tails, tails)
		require.EqualValues(t, 30, r.tiered.Stats().ShiftedTokens)
	})
}

func TestSeveralRunsFollowEachOther(t *testing.T) {
	r, _, history := newReusingRunner(t, newFakeRunner)
	prompt := slices.Concat(history[:3], history[30:45], history[10:40], tokenRange(3, 7))
	restored := r.load(r.slots[0], prompt, true)
	require.Equal(t, 3+15+30, restored.Held, "15 tokens are one whole page, 2 before it and 5 of the page after it")
	require.Equal(t, 15+30, restored.Shifted)
	requireMoved(t, r, 0, history, 3, 30, 15)
	requireMoved(t, r, 0, history, 18, 10, 30)
	r.finish(r.slots[0])
	r.run(r.slots[0], tokenRange(5, 20), nil, true)

	prompt = slices.Concat(history[:3], history[30:48], history[10:40], tokenRange(3, 7))
	restored = r.load(r.slots[0], prompt, true)
	require.Equal(t, 3+18+30, restored.Held)
	requireMoved(t, r, 0, history, 3, 30, 18)
	requireMoved(t, r, 0, history, 21, 10, 30)
}

// A slot continued with moved text is not exact after that text, for any later request.
func TestMovedTextIsReplacedByExactRows(t *testing.T) {
	r, store, history := newReusingRunner(t, newFakeRunner)
	prompt := leftOut(history, 13, 30)
	r.save(r.slots[0], prompt)

	other := newFakeRunner(t, store, 1, 128, Options{}) // computes all positions
	other.run(other.slots[0], prompt, nil, true)
	other.flush()

	restored := r.load(r.slots[0], append(slices.Clone(prompt), 9), true)
	require.Equal(t, len(prompt), restored.Held)
	require.Zero(t, restored.Shifted)
	r.model.requireRows(t, 0, prompt)
}

// idleWatch is the runner's lock, and signals its release by a restore that waits for the
// backend to be idle.
type idleWatch struct {
	*fakeRunner
	waits chan struct{}
}

func (r *fakeRunner) watchIdle() <-chan struct{} {
	w := idleWatch{r, make(chan struct{})}
	r.lock = w
	return w.waits
}

func (w idleWatch) Lock() { w.mu.Lock() }

func (w idleWatch) Unlock() {
	w.tiered.mu.Lock()
	if len(w.tiered.inFlight.idle) > 0 {
		close(w.waits)
	}
	w.tiered.mu.Unlock()
	w.mu.Unlock()
}

// The runner may hold its lock while it waits for the batch: with elastic memory it asks for room
// while it builds the next one.
func TestMovedRowsAreTurnedBetweenBatches(t *testing.T) {
	r, _, history := newReusingRunner(t, newFakeRunner)
	other := tokenRange(4, 30)
	r.load(r.slots[1], other, true)
	require.True(t, r.build())

	turned := 0
	r.cache.onShift = func() error { turned++; return nil }
	writing, built := make(chan struct{}), make(chan struct{})
	begun := false
	r.cache.onWrite = func() { // no restore of another slot
		if !begun {
			begun = true
			close(writing)
			<-built
		}
	}
	waits := r.watchIdle()
	loaded := make(chan Restored, 1)
	r.compute() // else the restore would wait for this batch too, for its cells, and be seen waiting too early
	go func() { loaded <- r.load(r.slots[0], leftOut(history, 0, 30), true) }()
	<-writing
	require.True(t, r.build())
	close(built)
	<-waits
	require.Zero(t, turned, "a batch is under way")
	defer watch(t, time.Minute, func() string { return "the runner's lock is held by who waits for the batch" })()
	r.mu.Lock()
	r.launch()
	b := r.flight[0]
	r.flight = nil
	r.device.readOutputs(t, b.handed)
	r.tiered.BatchDone(b.id)
	r.built.Add(-1)
	require.Equal(t, 1, turned, "a graph for the next batch may be computed from now on")
	r.mu.Unlock()
	restored := <-loaded
	require.Equal(t, 30, restored.Shifted)
	requireMoved(t, r, 0, history, 0, 30, 30)
	r.cache.onWrite = nil
	r.drain()
	r.cache.requireRows(t, 1, other)
}

func TestModelThatCannotShiftIsAskedOnce(t *testing.T) {
	withAndWithoutWindow(t, func(t *testing.T, start startRunner) {
		r, _, history := newReusingRunner(t, start)
		asked := 0
		for _, c := range r.model.caches {
			c.onShift = func() error { asked++; return ollama.ErrNotSupported }
		}
		for i := range 2 {
			prompt := leftOut(history, 13, 30+i)
			restored := r.load(r.slots[0], prompt, true)
			require.Zero(t, restored.Shifted)
			require.Equal(t, 13, restored.Held, "rows that the window dropped for the run are restored")
			r.drain()
			r.model.requireRows(t, 0, prompt)
			r.finish(r.slots[0])
			r.run(r.slots[0], tokenRange(5, 20), nil, true)
		}
		require.Equal(t, 1, asked)
	})
}

func TestReadFailureInMovedText(t *testing.T) {
	withAndWithoutWindow(t, func(t *testing.T, start startRunner) {
		r, store, history := newReusingRunner(t, start)
		store.readErr = map[int]error{5: errors.New("input/output error")}
		prompt := leftOut(history, 13, 30)
		restored := r.load(r.slots[0], prompt, true)
		if store.windowed { // rows that the window dropped for the run are restored
			require.Equal(t, 13, restored.Held)
			require.Zero(t, restored.Shifted)
			r.drain()
			r.model.requireRows(t, 0, prompt)
			return
		}
		require.Equal(t, 13+10, restored.Held, "up to the page that cannot be read")
		require.Equal(t, 10, restored.Shifted)
		requireMoved(t, r, 0, history, 13, 30, 10)
	})
}

func TestCancelWhileMovedRowsWait(t *testing.T) {
	r, _, history := newReusingRunner(t, newFakeRunner)
	r.load(r.slots[1], tokenRange(4, 30), true)
	ctx, cancel := context.WithCancel(t.Context())
	built := false
	r.cache.onWrite = func() { // with the runner's lock released
		if !built {
			built = true
			require.True(t, r.build())
		}
	}
	waits := r.watchIdle()
	go func() {
		<-waits
		cancel()
	}()
	r.mu.Lock()
	require.NoError(t, r.tiered.Remove(0, 0, math.MaxInt32))
	prompt := leftOut(history, 0, 30)
	restored, err := r.restore(ctx, r.lock, 0, 0, inputsOf(prompt), func(int) {})
	r.slots[0].inputs = nil
	r.mu.Unlock()
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, restored.Held, "rows that were not turned are of no use")
	r.cache.onWrite = nil
	require.Empty(t, r.tiered.inFlight.idle)
	r.lock = &r.mu
	r.compute()
	r.run(r.slots[0], prompt, nil, true)
}

func TestImagesDoNotMove(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 1, 128, Options{Runs: runs.New(8, 100), Media: identify})
	history := tokenRange(1, 60)
	in := inputsOf(history)
	in[34] = &input.Input{Token: history[34], MultimodalHash: 7}
	r.runInputs(r.slots[0], in)
	r.runInputs(r.slots[0], inputsOf(tokenRange(2, 20)))
	r.flush()

	prompt := inputsOf(leftOut(history, 3, 10)) // the same token without an image
	restored := r.loadInputs(r.slots[0], prompt, true)
	require.Equal(t, 3+24, restored.Held, "up to the image, at position 34 of the history")
	r.finish(r.slots[0])
	prompt[27] = &input.Input{Token: history[34], MultimodalHash: 7}
	prompt[20] = &input.Input{Token: history[27], MultimodalHash: 8, SameBatch: 3}
	r.runInputs(r.slots[0], inputsOf(tokenRange(2, 20)))
	restored = r.loadInputs(r.slots[0], prompt, true)
	require.LessOrEqual(t, restored.Held, 20)
}

func TestNothingMovesUnlessAsked(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 1, 128, Options{})
	history := tokenRange(1, 60)
	r.leave(history)
	restored := r.load(r.slots[0], leftOut(history, 13, 30), true)
	require.Equal(t, 13, restored.Held)
	require.Zero(t, restored.Shifted)
}

func TestPagesThatAreGoneAreForgotten(t *testing.T) {
	r, store, history := newReusingRunner(t, newFakeRunner)
	clear(store.pages)
	clear(store.tails)
	n := r.tiered.opts.Runs.Len()
	require.Zero(t, r.load(r.slots[0], leftOut(history, 0, 30), true).Held)
	require.Less(t, r.tiered.opts.Runs.Len(), n)
}

// TestTextOfASlowDiskStaysInTheIndex, when its page is not found because the disk hangs in a look-up,
// or because the page still waits to be written.
func TestTextOfASlowDiskStaysInTheIndex(t *testing.T) {
	for _, op := range []string{"find", "put"} {
		t.Run(op, func(t *testing.T) {
			store := newSilentStore(t)
			r := newFakeRunner(t, store, 2, 128, Options{Runs: runs.New(8, 100)})
			history := tokenRange(1, 60)
			patience, queue := &r.tiered.store.Patience, &r.tiered.store.patience.queue
			patience.Find, *queue = time.Millisecond, time.Millisecond
			if op == "put" {
				store.hang(op)
			}
			r.run(r.slots[0], history, nil, true)
			r.run(r.slots[0], history[:11], nil, false)
			if op != "put" {
				r.settle()
				store.hang(op)
			}
			r.run(r.slots[0], leftOut(history, 10, 21), nil, false)
			store.answer(r)
			r.settle()
			patience.Find, *queue = time.Hour, time.Hour
			require.Positive(t, r.load(r.slots[1], leftOut(history, 9, 21), false).Shifted)
		})
	}
}

// TestTextOfEarlierProcesses is found by the first request as well: the index is still being
// filled when the request comes.
func TestTextOfEarlierProcesses(t *testing.T) {
	earlier, store, history := newReusingRunner(t, newFakeRunner)
	filled := make(chan struct{})
	r := newFakeRunner(t, store, 1, 128, Options{Runs: runs.New(8, 100), RunsFilled: filled})
	r.tiered.restorer.runsBy = time.Now().Add(time.Hour)
	releases := 0
	r.lock = onUnlock{&r.mu, func() {
		if releases++; releases != 2 { // the first release is for the look-up of pages that begin alike
			return
		}
		for _, p := range store.pages {
			r.tiered.opts.Runs.Learn(p.Key(), p)
		}
		close(filled)
	}}
	require.Equal(t, 30, r.load(r.slots[0], leftOut(history, 0, 30), true).Shifted)
	earlier.settle()
}

// TestAnIndexThatIsNotFilledInTime holds up no request.
func TestAnIndexThatIsNotFilledInTime(t *testing.T) {
	_, store, history := newReusingRunner(t, newFakeRunner)
	r := newFakeRunner(t, store, 1, 128, Options{Runs: runs.New(8, 100), RunsFilled: make(chan struct{})})
	r.tiered.restorer.runsBy = time.Now()
	require.Zero(t, r.load(r.slots[0], leftOut(history, 0, 30), true).Held)
}

// onUnlock calls a function after each release of a lock.
type onUnlock struct {
	sync.Locker
	after func()
}

func (l onUnlock) Unlock() {
	l.Locker.Unlock()
	l.after()
}
