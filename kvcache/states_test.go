package kvcache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// stateValue is the state of two layers: a hash of all tokens.
type stateValue [2][]byte

// noState is the state at the beginning of a sequence.
func noState() stateValue { return stateValue{make([]byte, 32), make([]byte, 32)} }

// after is the state after one more token.
func (v stateValue) after(token int32) stateValue {
	for i := range v {
		sum := sha256.Sum256(fmt.Append(v[i], i, token))
		v[i] = sum[:]
	}
	return v
}

// stateAfter is the state after tokens.
func stateAfter(tokens []int32) stateValue {
	v := noState()
	for _, token := range tokens {
		v = v.after(token)
	}
	return v
}

// fakeStates is the state of one sequence.
type fakeStates struct {
	device *fakeDevice
	held   bool
	keeps  bool       // the state stays where a removal removes no row, as in a cache with checkpoints
	value  stateValue // guarded by the device's mu
}

func newFakeStates(d *fakeDevice) *fakeStates {
	s := &fakeStates{device: d, value: noState()}
	d.memory = append(d.memory, s)
	return s
}

func (s *fakeStates) save() (restore func()) {
	value := s.value // layers are replaced and never changed in place
	return func() { s.value = value }
}

// reset drops the state. A graph zeroes the memory for the next sequence.
func (s *fakeStates) reset() {
	s.held = false
	s.device.hand(func() { s.value = noState() })
}

func (s *fakeStates) StateLayers(recurrent bool) []int {
	if recurrent {
		return []int{3}
	}
	return []int{2}
}

func (s *fakeStates) StateBytes(int, bool) (int, error) { return 32, nil }
func (s *fakeStates) HasState(int) bool                 { return s.held }
func (s *fakeStates) BeginState(int) error              { s.held = true; return nil }

func (s *fakeStates) ReadState(layer int, recurrent bool, dst []byte) error {
	s.device.mu.Lock()
	defer s.device.mu.Unlock()
	copy(dst, s.value[layer-2])
	return nil
}

func (s *fakeStates) WriteState(layer int, recurrent bool, src []byte) error {
	s.device.mu.Lock()
	defer s.device.mu.Unlock()
	s.value[layer-2] = slices.Clone(src)
	return nil
}

// advance makes the device compute the state after more tokens.
func (s *fakeStates) advance(tokens []int32) {
	s.held = true
	s.device.hand(func() {
		for _, token := range tokens {
			s.value = s.value.after(token)
		}
	})
}

// requireAfter waits for the device and checks that this is the state after tokens.
func (s *fakeStates) requireAfter(t require.TestingT, tokens []int32) {
	want := stateAfter(tokens)
	s.device.later(func() { require.Equal(t, want, s.value) })
}

// hybridRunner is a fakeRunner of a model with state. Upstream drops the state when
// positions are removed, and zeroes the state for a new sequence.
type hybridRunner struct{ *fakeRunner }

type hybridModel struct {
	fakeModel
	states *fakeStates
}

func (m hybridModel) Remove(seq int, begin, end int32) error {
	removed := begin == 0
	for pos := range m.caches[len(m.caches)-1].held()[seq] { // groups with a window come first
		removed = removed || pos >= begin && pos < end
	}
	if err := m.fakeModel.Remove(seq, begin, end); err != nil {
		return err
	}
	if removed || !m.states.keeps {
		m.states.reset()
	}
	return nil
}

func newHybridRunner(t testing.TB, store Store, opts Options) *hybridRunner {
	return withStates(newFakeRunner(t, store, 1, 256, opts))
}

// withStates adds recurrent layers to a runner's model, before any batch.
func withStates(r *fakeRunner) *hybridRunner {
	r.tiered.Close()
	for _, c := range r.model.caches {
		c.closed = false
	}
	r.states = newFakeStates(r.device)
	opts := r.tiered.opts
	opts.Layers, opts.States = opts.Layers+2, r.states
	r.tiered = inPieces(New(hybridModel{r.model, r.states}, r.model.rows(), opts))
	r.timers = withTimers(r.tiered.queue)
	r.onCompute = func(b *fakeBatch) { r.states.advance(tokensOf(b.inputs)) }
	r.t.Cleanup(r.tiered.Close)
	return &hybridRunner{r}
}

// requireExact checks rows and state of slot 0.
func (r *hybridRunner) requireExact(t require.TestingT, tokens []int32) {
	r.cache.requireRows(t, 0, tokens)
	r.states.requireAfter(t, tokens)
}

func TestStateComesBack(t *testing.T) {
	for _, n := range []int{3, 8, 12, 16, 24, 29, 47, 48, 49} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			store := newMemStore(t)
			r := newHybridRunner(t, store, Options{})
			prompt := tokenRange(1, n)
			r.run(r.slots[0], prompt, []int32{901, 902, 903}, true)
			r.requireExact(t, append(slices.Clone(prompt), 901, 902, 903))
			r.tiered.Close()

			// the next prompt has all, a part or nothing of the answer
			for kept, held := range map[int]int{3: n + 3, 2: n, 0: n} {
				again := newHybridRunner(t, store, Options{})
				next := append(append(slices.Clone(prompt), []int32{901, 902, 903}[:kept]...), tokenRange(3, 20)...)
				require.Equal(t, held, again.load(again.slots[0], next, false).Held, "%d tokens of the answer", kept)
				again.requireExact(t, next[:held])
				again.drain()
				again.requireExact(t, next)
				again.finish(again.slots[0])
			}
		})
	}
}

// The same prompt again goes on from the state before its last batch: its last token is computed.
func TestStateBeforeTheLastBatchOfAPrompt(t *testing.T) {
	store := newMemStore(t)
	r := newHybridRunner(t, store, Options{})
	prompt := tokenRange(1, 40) // in batches of 12
	r.run(r.slots[0], prompt, []int32{901}, true)
	r.tiered.Close()
	again := newHybridRunner(t, store, Options{})
	require.Equal(t, 36, again.load(again.slots[0], prompt, true).Held)
	again.drain()
	again.requireExact(t, prompt)
}

func TestStateIsStoredNowAndThen(t *testing.T) {
	store := newMemStore(t)
	r := newHybridRunner(t, store, Options{StateEvery: 24})
	long := tokenRange(1, 100)
	r.run(r.slots[0], long, nil, true)
	r.tiered.Close()
	again := newHybridRunner(t, store, Options{})
	branch := append(slices.Clone(long[:60]), tokenRange(2, 20)...)
	require.Equal(t, 48, again.load(again.slots[0], branch, true).Held)
	again.drain()
	again.requireExact(t, branch)
}

// Rows left in a slot without their state are of no use.
func TestRowsWithoutStateAreComputedAgain(t *testing.T) {
	r := newHybridRunner(t, newMemStore(t), Options{})
	prompt := tokenRange(1, 30)
	r.run(r.slots[0], prompt, nil, false)
	next := append(slices.Clone(prompt), tokenRange(2, 5)...)
	require.Zero(t, r.load(r.slots[0], next, true).Held)
	r.drain()
	r.requireExact(t, next)
}

// A damaged page makes the state after it useless: an earlier state is restored.
func TestStateOfADamagedPage(t *testing.T) {
	store := newMemStore(t)
	r := newHybridRunner(t, store, Options{StateEvery: 8})
	prompt := tokenRange(1, 60)
	r.run(r.slots[0], prompt, nil, true)
	r.tiered.Close()
	store.readErr = map[int]error{5: pagefile.ErrDamaged}
	again := newHybridRunner(t, store, Options{})
	held := again.load(again.slots[0], append(slices.Clone(prompt), 7), true).Held
	require.Equal(t, 36, held)
	again.requireExact(t, prompt[:held])
}

func TestCheckpointCachesStaySo(t *testing.T) {
	r := newHybridRunner(t, newMemStore(t), Options{})
	_, ok := r.tiered.AsCache().(interface {
		PrepareRestore(int, int32) (int32, bool)
	})
	require.False(t, ok)
	inner := checkpointModel{hybridModel: hybridModel{r.model, r.states}}
	tiered := New(inner, r.model.rows(), r.tiered.opts)
	t.Cleanup(tiered.Close)
	cache := tiered.AsCache()
	pos, ok := cache.(interface {
		PrepareRestore(int, int32) (int32, bool)
	}).PrepareRestore(1, 7)
	require.True(t, ok)
	require.Equal(t, int32(7), pos)
	require.Same(t, tiered, cache.(interface{ Tiered() *TieredCausal }).Tiered())
	require.NoError(t, cache.Remove(0, 0, math.MaxInt32))
}

type checkpointModel struct{ hybridModel }

func (checkpointModel) PrepareRestore(_ int, pos int32) (int32, bool) { return pos, true }

// When a sequence ends, one of its batches is under way and goes on writing to the slot's
// state: the next sequence may not begin before that batch ends.
func TestSettleWaitsForWhatAnEndedSequenceLeft(t *testing.T) {
	r := newHybridRunner(t, newMemStore(t), Options{})
	slot := r.slots[0]
	r.begin(slot, tokenRange(1, 20), true)
	slot.rest = inputsOf([]int32{901})
	r.build()
	r.finish(slot)

	settled := make(chan error, 1)
	settle := func(ctx context.Context) {
		r.mu.Lock()
		go func() {
			settled <- r.tiered.Settle(ctx, r.lock)
			r.mu.Unlock()
		}()
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	settle(gone)
	require.ErrorIs(t, <-settled, context.Canceled)

	settle(t.Context())
	r.mu.Lock() // Settle has released the lock, or returned
	require.Empty(t, settled, "a batch is under way")
	r.mu.Unlock()
	r.compute()
	require.NoError(t, <-settled)

	next := tokenRange(5, 20)
	r.begin(slot, next, true)
	r.requireExact(t, next)
}

func TestSettleIsForStateAlone(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 1, 64, Options{})
	r.load(r.slots[0], tokenRange(1, 9), true)
	r.build()
	r.mu.Lock()
	require.NoError(t, r.tiered.Settle(t.Context(), r.lock), "rows of the discarded batch are in cells of their own")
	r.mu.Unlock()
	r.compute()
}

// While a state is being replaced by a later one, the runner counts no token as held: another
// request that took the slot's rows would go on from the wrong state.
func TestAStateThatIsBeingReplacedHoldsNothing(t *testing.T) {
	store := newMemStore(t)
	prompt := tokenRange(1, 40)
	first := newHybridRunner(t, store, Options{})
	first.run(first.slots[0], prompt, nil, true)
	first.tiered.Close()

	r := newHybridRunner(t, store, Options{})
	r.run(r.slots[0], prompt[:20], nil, false)
	held := -1
	var during []int
	store.onRead = func(int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		during = append(during, held)
	}
	r.mu.Lock()
	restored, err := r.restore(t.Context(), r.lock, 0, 20, inputsOf(prompt), func(n int) { held = n })
	r.mu.Unlock()
	require.NoError(t, err)
	require.Equal(t, 36, restored.Held)
	require.Equal(t, 16, restored.Tokens, "the rest was held, and is read for its state alone")
	r.requireExact(t, prompt[:36])
	require.NotEmpty(t, during)
	for _, n := range during {
		require.Zero(t, n)
	}
}

// A state is of no use where a page of the window before it has no rows: no other position
// of the plan has a state, and nothing is read.
func TestStateWithoutItsWindow(t *testing.T) {
	var log bytes.Buffer
	store := newMemStore(t)
	r := withStates(newWindowedRunner(t, store, 1, 128, Options{}))
	clock := withClock(r.fakeRunner)
	text := tokenRange(1, 54)
	r.load(r.slots[0], text[:36], true)
	for range 3 {
		require.True(t, r.build() && r.compute())
		r.settle()
		if r.tiered.Stats().SealedPages == 3 {
			store.setFail(errRefused)
		}
	}
	for _, token := range text[36:] { // the page from 40 on leaves the window before it is stored
		r.generate(r.slots[0], token)
		r.settle()
	}
	r.finish(r.slots[0])
	store.setFail(nil)
	clock.add(retryFirst)
	r.flush()
	refs := store.Find(t.Context(), diskstore.Prompt{Parent: store.root, Tokens: text}).Exact
	require.Len(t, refs, 7, "six pages and the one with the state")
	windows := func(page int) bool {
		return slices.ContainsFunc(store.findLocked(refs[page]).Layout.Sections(), func(s pagefile.Section) bool { return s.Group == 0 })
	}
	require.True(t, windows(4) && !windows(5) && windows(6), "the test needs a page without its window")
	r.tiered.Close()

	opts := Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	again := withStates(newWindowedRunner(t, store, 1, 128, opts))
	next := append(slices.Clone(text), 7, 8)
	require.Zero(t, again.load(again.slots[0], next, true).Held)
	require.Zero(t, store.read[1], "rows were read")
	require.Empty(t, log.String())
	again.drain()
	again.model.requireRows(t, 0, next)
	again.states.requireAfter(t, next)
}
