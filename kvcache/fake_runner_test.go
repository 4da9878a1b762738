package kvcache

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ollama/ollama/model/input"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
)

// fakeRunner drives a TieredCausal as Ollama's runner does: batch n+1 is built while batch n
// is computed, and slots are loaded at any time.
type fakeRunner struct {
	t      testing.TB
	mu     sync.Mutex // the runner's lock
	lock   sync.Locker
	cache  *fakeCache // keeps all positions
	model  fakeModel  // cache, and perhaps others
	device *fakeDevice
	states *fakeStates // nil in a model without recurrent layers
	tiered *TieredCausal
	timers *timers
	numCtx int
	batch  int
	nextID int
	flight []*fakeBatch
	built  atomic.Int32 // batches that are built and not done
	slots  []*fakeSlot

	meter     *telemetry.Meter
	asked     int                // prompts for which Restore was called
	tokens    int                // of these
	totals    map[string]float64 // of the meter, at the last look
	onCompute func(*fakeBatch)
}

type fakeSlot struct {
	id     int
	inputs []*input.Input // the cache's content in the runner's view
	rest   []*input.Input
	inUse  bool
	// aborted: the request was given up during its restore, and a window may be gone.
	aborted bool
	store   bool
	exact   int // positions whose rows follow from their tokens
	own     int // first position that the slot's request has computed
}

type fakeBatch struct {
	id      int
	inputs  []*input.Input
	cells   [][]int32   // by cache
	before  [][][]int32 // by cache and input
	outputs bool        // the runner samples from the batch
	handed  int         // number of pieces of device work with this batch; 0: only built
}

// startRunner starts a runner of some kind of model.
type startRunner = func(t testing.TB, store Store, slots, numCtx int, opts Options) *fakeRunner

// newStored starts a runner on a new store in memory.
func newStored(t testing.TB, start startRunner, slots, numCtx int, opts Options) (*fakeRunner, *memStore) {
	store := newMemStore(t)
	return start(t, store, slots, numCtx, opts), store
}

// withAndWithoutWindow runs a test for a model that keeps all positions and one with a window.
func withAndWithoutWindow(t *testing.T, test func(t *testing.T, start startRunner)) {
	for name, start := range map[string]startRunner{"plain": newFakeRunner, "window": newWindowedRunner} {
		t.Run(name, func(t *testing.T) { test(t, start) })
	}
}

func newFakeRunner(t testing.TB, store Store, slots, numCtx int, opts Options) *fakeRunner {
	r := &fakeRunner{t: t, numCtx: numCtx, batch: fakeBatchMax, cache: newFakeCache(slots*numCtx+1, 2)}
	opts.Store, opts.Layers, opts.AlwaysRestore = store, 2, true
	r.lock = &r.mu
	if opts.PageTokens == 0 {
		opts.PageTokens = 8
	}
	opts.Fingerprint[0] = 1
	r.meter = new(telemetry.Meter)
	opts.Meter = r.meter
	r.device = r.cache.device
	r.model.caches = []*fakeCache{r.cache}
	r.tiered = inPieces(New(r.model, r.model.rows(), opts))
	r.timers = withTimers(r.tiered.queue)
	t.Cleanup(func() {
		r.tiered.Close()
		r.checkAccounts(t, true)
	})
	for i := range slots {
		r.slots = append(r.slots, &fakeSlot{id: i})
	}
	return r
}

// cost gives the wrapper other costs, which are measured from now on.
func (r *fakeRunner) cost(of *rates.Rates) {
	r.tiered.rates, r.tiered.accounts.rates, r.tiered.gate.Rates = of, of, of
}

func inputsOf(tokens []int32) []*input.Input {
	var in []*input.Input
	for _, token := range tokens {
		in = append(in, &input.Input{Token: token})
	}
	return in
}

func tokensOf(inputs []*input.Input) []int32 {
	var tokens []int32
	for _, in := range inputs {
		tokens = append(tokens, in.Token)
	}
	return tokens
}

func tokenRange(seed, n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(seed*1000 + i)
	}
	return tokens
}

func commonPrefix(a, b []*input.Input) int {
	n := 0
	for n < len(a) && n < len(b) && a[n].Token == b[n].Token {
		n++
	}
	return n
}

// load starts a request in a slot, as completion does.
func (r *fakeRunner) load(slot *fakeSlot, prompt []int32, store bool) Restored {
	return r.loadInputs(slot, inputsOf(prompt), store)
}

func (r *fakeRunner) loadInputs(slot *fakeSlot, in []*input.Input, store bool) Restored {
	restored, err := r.loadContext(r.t.Context(), slot, in, store)
	require.NoError(r.t, err)
	return restored
}

// loadContext is loadInputs for a request that may be given up, which frees the slot.
func (r *fakeRunner) loadContext(ctx context.Context, slot *fakeSlot, in []*input.Input, store bool) (Restored, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	lock := r.lock
	if err := r.tiered.AwaitFilling(ctx, lock, in); err != nil {
		return Restored{}, err
	}
	require.False(r.t, slot.inUse)
	if r.states != nil {
		if err := r.tiered.Settle(ctx, lock); err != nil {
			return Restored{}, err
		}
	}
	past := min(commonPrefix(slot.inputs, in), len(in)-1)
	if past > 0 && !r.model.CanResume(slot.id, int32(past)) {
		past = 0
	}
	require.NoError(r.t, r.tiered.Remove(slot.id, int32(past), math.MaxInt32))
	slot.inputs, slot.inUse, slot.aborted, slot.store = in[:past:past], true, false, store
	slot.own = math.MaxInt // no position yet
	slot.exact = min(slot.exact, past)
	restored, err := r.restore(ctx, lock, slot.id, past, in, func(n int) {
		slot.inputs, slot.exact = in[:n:n], min(slot.exact, n)
	})
	if base := restored.Held - restored.Tokens; restored.Tokens > 0 && base <= slot.exact {
		slot.exact = restored.Held - restored.Shifted - restored.Lossy
	}
	if err != nil {
		slot.inUse, slot.aborted = false, true
		return restored, err
	}
	r.checkAccount(slot.id, restored)
	slot.inputs, slot.rest = in[:restored.Held:restored.Held], in[restored.Held:]
	r.tiered.StartSequence(slot.id, store)
	slot.own = restored.Held
	return restored, nil
}

// restore calls Restore, with the runner's lock held, and counts the prompt.
func (r *fakeRunner) restore(ctx context.Context, lock sync.Locker, seq, have int, prompt []*input.Input, hold func(tokens int)) (Restored, error) {
	r.asked, r.tokens = r.asked+1, r.tokens+len(prompt)
	return r.tiered.Restore(ctx, lock, seq, have, prompt, hold)
}

// fill fills a slot with a text, as the runner does while a model loads.
func (r *fakeRunner) fill(text []int32) {
	from := make(chan []int32, 1)
	from <- text
	r.tiered.opts.Latest = from
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tiered.FillSlot(&r.mu, r.numCtx, func(inputs []*input.Input) {
		slot := r.slots[0]
		slot.inputs, slot.exact = inputs[:len(inputs):len(inputs)], len(inputs)
	})
}

// fillAll fills a slot, and waits until it is filled.
func (r *fakeRunner) fillAll(text []int32) {
	r.fill(text)
	r.filled()
}

// filled waits until the slot is filled.
func (r *fakeRunner) filled() {
	r.tiered.mu.Lock()
	f := r.tiered.filling
	r.tiered.mu.Unlock()
	<-f.done
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tiered.mu.Lock()
	defer r.tiered.mu.Unlock()
	if s := r.tiered.slots.of[0]; s != nil {
		r.slots[0].exact -= s.early.Lossy
	}
}

// fork copies to a slot the longest beginning of a prompt that the runner believes another slot holds,
// as findBestCacheSlot does even with slots in use. fork returns the number of tokens.
func (r *fakeRunner) fork(slot *fakeSlot, prompt []int32) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	longest, from := 0, (*fakeSlot)(nil)
	for _, other := range r.slots {
		if n := commonPrefix(other.inputs, inputsOf(prompt)); other != slot && n > longest {
			longest, from = n, other
		}
	}
	if from != nil {
		r.tiered.CopyPrefix(from.id, slot.id, int32(longest))
		slot.inputs, slot.exact = slices.Clone(from.inputs[:longest]), min(longest, from.exact)
	}
	return longest
}

// build builds the next batch of all slots in use. build reports whether there were inputs.
func (r *fakeRunner) build() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var batch input.Batch
	b := &fakeBatch{id: r.nextID}
	ends := make(map[int]bool)
	for _, s := range r.slots {
		n := min(len(s.rest), r.batch-len(b.inputs))
		if !s.inUse || n <= 0 {
			continue
		}
		for i := range n {
			batch.Sequences = append(batch.Sequences, s.id)
			batch.Positions = append(batch.Positions, int32(len(s.inputs)+i))
		}
		b.inputs = append(b.inputs, s.rest[:n]...)
		if s.exact == len(s.inputs) {
			s.exact += n
		}
		s.inputs = append(s.inputs, s.rest[:n]...)
		s.rest = s.rest[n:]
		ends[s.id] = len(s.rest) == 0
		b.outputs = b.outputs || ends[s.id]
	}
	if len(b.inputs) == 0 {
		return false
	}
	r.take(b, batch, func(int) bool { return true }, func(seq int) bool { return ends[seq] })
	return true
}

// take gives a batch its cells, and tells the wrapper of it.
func (r *fakeRunner) take(b *fakeBatch, batch input.Batch, tracked, promptEnd func(seq int) bool) {
	r.nextID++
	for _, c := range r.model.caches {
		c.build(r.t, batch)
		b.cells = append(b.cells, c.batchCells)
		var before [][]int32
		for i, seq := range batch.Sequences {
			before = append(before, c.visible(seq, batch.Positions[i]))
		}
		b.before = append(b.before, before)
	}
	r.tiered.BatchBuilt(b.id, batch, b.inputs, tracked, promptEnd)
	r.flight = append(r.flight, b)
	r.built.Add(1)
}

// empty gives back the cells of a slot, with the runner's lock held.
func (r *fakeRunner) empty(slot *fakeSlot) {
	slot.inputs, slot.exact = nil, 0
	require.NoError(r.t, r.tiered.Remove(slot.id, 0, math.MaxInt32))
}

// embed computes an embedding in a slot, as a request that is not tracked. The batches before it
// are done with: a model that embeds computes one at a time.
func (r *fakeRunner) embed(slot *fakeSlot, tokens []int32) {
	for r.compute() {
	}
	r.mu.Lock()
	r.empty(slot)
	b, batch := &fakeBatch{id: r.nextID, inputs: inputsOf(tokens), outputs: true}, input.Batch{}
	for i := range tokens {
		batch.Sequences, batch.Positions = append(batch.Sequences, slot.id), append(batch.Positions, int32(i))
	}
	r.take(b, batch, func(int) bool { return false }, func(int) bool { return false })
	r.mu.Unlock()
	for r.compute() {
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.empty(slot)
}

// launch hands the oldest built batch to the device.
func (r *fakeRunner) launch() bool {
	if len(r.flight) == 0 || r.flight[0].handed > 0 {
		return false
	}
	r.handOver(r.flight[0])
	return true
}

func (r *fakeRunner) handOver(b *fakeBatch) {
	b.handed = r.model.compute(b)
	if r.onCompute != nil {
		r.onCompute(b)
	}
	if b.outputs {
		r.device.launched()
	}
}

// compute hands the oldest built batch to the device and reports it done. The runner waits
// for the device only if the batch has outputs.
func (r *fakeRunner) compute() bool {
	if len(r.flight) == 0 {
		return false
	}
	r.launch()
	b := r.flight[0]
	r.flight = r.flight[1:]
	r.done(b)
	return true
}

// done reports a batch done that was handed over. The runner may build the next one meanwhile
// with its lock held, and wait for this one: so the lock is held here, every other time.
func (r *fakeRunner) done(b *fakeBatch) {
	if b.outputs {
		r.device.readOutputs(r.t, b.handed)
	}
	if b.id%2 == 0 {
		r.mu.Lock()
		defer r.mu.Unlock()
	}
	r.tiered.BatchDone(b.id)
	r.built.Add(-1)
}

// shift drops positions [keep, keep+discard) of a slot, as the runner does while it builds a
// batch: it waits until the batches before are done.
func (r *fakeRunner) shift(slot *fakeSlot, keep, discard int) {
	for r.compute() {
	}
	r.mu.Lock()
	err := r.tiered.Remove(slot.id, int32(keep), int32(keep+discard))
	if err == nil {
		slot.inputs = append(slot.inputs[:keep:keep], slot.inputs[keep+discard:]...)
		slot.exact = min(slot.exact, keep)
	} else { // the runner computes the rest again without these positions
		require.NoError(r.t, r.tiered.Remove(slot.id, 0, math.MaxInt32))
		slot.rest = slices.Concat(slot.inputs[:keep], slot.inputs[keep+discard:], slot.rest)
		slot.inputs, slot.exact, slot.own = nil, 0, 0
	}
	r.mu.Unlock()
}

// finish ends a request.
func (r *fakeRunner) finish(slot *fakeSlot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tiered.EndSequence(slot.id)
	slot.inUse, slot.rest = false, nil
}

// complete computes a request to its end, and ends it.
func (r *fakeRunner) complete(slot *fakeSlot) {
	r.drain()
	r.finish(slot)
}

// begin loads a prompt and computes it.
func (r *fakeRunner) begin(slot *fakeSlot, prompt []int32, store bool) {
	r.load(slot, prompt, store)
	r.drain()
}

// generate computes a token of the answer.
func (r *fakeRunner) generate(slot *fakeSlot, token int32) {
	slot.rest = inputsOf([]int32{token})
	r.drain()
}

// keep runs a public request, and waits for the pages that are queued.
func (r *fakeRunner) keep(slot *fakeSlot, prompt []int32) {
	r.run(slot, prompt, nil, true)
	r.settle()
}

// save runs a public request, and flushes.
func (r *fakeRunner) save(slot *fakeSlot, prompt []int32) {
	r.run(slot, prompt, nil, true)
	r.flush()
}

// leave stores a text and gives its slot to another: only the store has the text.
func (r *fakeRunner) leave(text []int32) {
	r.run(r.slots[0], text, nil, true)
	r.save(r.slots[0], tokenRange(2, 9))
}

// cut removes a slot's positions from n on, of which the runner takes no note.
func (r *fakeRunner) cut(seq int, n int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	require.NoError(r.t, r.tiered.Remove(seq, n, math.MaxInt32))
}

// drain builds and computes until every request's inputs are computed.
func (r *fakeRunner) drain() {
	for r.build() || r.compute() {
	}
}

// run runs a whole request: the prompt, then generated tokens one at a time.
func (r *fakeRunner) run(slot *fakeSlot, prompt, generated []int32, store bool) Restored {
	restored := r.load(slot, prompt, store)
	r.drain()
	for _, token := range generated {
		r.generate(slot, token)
	}
	r.finish(slot)
	return restored
}

// runInputs runs a prompt with images, and generates nothing.
func (r *fakeRunner) runInputs(slot *fakeSlot, in []*input.Input) {
	r.loadInputs(slot, in, true)
	r.complete(slot)
}

func (r *fakeRunner) flush() { require.NoError(r.t, r.tiered.Flush(r.t.Context())) }
