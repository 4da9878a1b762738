package kvcache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	ollama "github.com/ollama/ollama/kvcache"
	"github.com/ollama/ollama/ml"
	"github.com/ollama/ollama/model/input"
	"github.com/stretchr/testify/require"
)

// fakeCache is a cache with upstream's cell logic and an arithmetic that shows every
// mistake: the row of a position is a hash of its token and of the rows it attends to, read
// from the cache when the batch is computed. One wrong byte anywhere changes all that
// follows.
type fakeCache struct {
	ollama.Cache // methods only models call

	// window and memory are math.MaxInt32 in a cache that keeps everything. There a row
	// depends on the one before it, and in another on all that are visible.
	window, memory int32

	cells  []fakeCell
	layers int
	device *fakeDevice
	rows   map[section][]byte // per layer and kind, one row per cell; the device's mu

	// unwritten counts the copies that cells still lack which were reserved; the device's mu.
	unwritten map[int32]int

	batchCells []int32
	onWrite    func()
	onShift    func() error
	closed     bool
}

type fakeCell struct {
	pos  int32
	seqs []int
}

type section struct {
	layer int
	value bool
}

const (
	fakeKeyBytes   = 24 // not equal, not a power of two, so that mixing K and V up shows
	fakeValueBytes = 40
)

func newFakeCache(cells, layers int) *fakeCache {
	c := &fakeCache{
		window: math.MaxInt32, memory: math.MaxInt32,
		cells: make([]fakeCell, cells), layers: layers, rows: make(map[section][]byte),
		unwritten: make(map[int32]int),
	}
	for l := range layers {
		c.rows[section{l, false}] = make([]byte, cells*fakeKeyBytes)
		c.rows[section{l, true}] = make([]byte, cells*fakeValueBytes)
	}
	c.on(&fakeDevice{})
	return c
}

func (c *fakeCache) RowLayers() []int {
	var layers []int
	for l := range c.layers {
		layers = append(layers, l)
	}
	return layers
}

func (c *fakeCache) RowBytes(layer int, value bool) (int, error) {
	if value {
		return fakeValueBytes, nil
	}
	return fakeKeyBytes, nil
}

func (c *fakeCache) row(s section, cell int32) []byte {
	n, _ := c.RowBytes(s.layer, s.value)
	return c.rows[s][int(cell)*n : (int(cell)+1)*n]
}

func (c *fakeCache) ReadRows(layer int, value bool, cells []int32, dst []byte) error {
	c.device.mu.Lock()
	defer c.device.mu.Unlock()
	c.device.copiedLocked()
	n, _ := c.RowBytes(layer, value)
	if len(dst) != n*len(cells) {
		return fmt.Errorf("%d bytes for %d rows", len(dst), len(cells))
	}
	for i, cell := range cells {
		copy(dst[i*n:], c.row(section{layer, value}, cell))
	}
	return nil
}

func (c *fakeCache) WriteRows(layer int, value bool, cells []int32, src []byte) error {
	if c.onWrite != nil {
		c.onWrite()
	}
	c.device.mu.Lock()
	defer c.device.mu.Unlock()
	c.device.copiedLocked()
	n, _ := c.RowBytes(layer, value)
	if len(src) != n*len(cells) {
		return fmt.Errorf("%d bytes for %d rows", len(src), len(cells))
	}
	poison := bytes.Count(src, []byte{0xff}) == len(src)
	for i, cell := range cells {
		copy(c.row(section{layer, value}, cell), src[i*n:(i+1)*n])
		if !poison {
			c.unwritten[cell]--
		}
	}
	return nil
}

func (c *fakeCache) RowWindow() (window, memory int32)        { return c.window, c.memory }
func (c *fakeCache) SynchronizeRows()                         { c.device.synchronize() }
func (c *fakeCache) BatchCells() []int32                      { return c.batchCells }
func (c *fakeCache) Close()                                   { c.closed = true }
func (c *fakeCache) Init(ml.Backend, ml.DType, int, int, int) {}
func (c *fakeCache) free(cell int) bool                       { return len(c.cells[cell].seqs) == 0 }
func (c *fakeCache) holds(cell, seq int) bool                 { return slices.Contains(c.cells[cell].seqs, seq) }
func (c *fakeCache) drop(cell, seq int) {
	c.cells[cell].seqs = slices.DeleteFunc(c.cells[cell].seqs, func(s int) bool { return s == seq })
}

func (c *fakeCache) take(seq int, pos int32) (int32, bool) {
	for i := range c.cells {
		if c.free(i) {
			c.cells[i] = fakeCell{pos, []int{seq}}
			c.device.mu.Lock()
			delete(c.unwritten, int32(i))
			c.device.mu.Unlock()
			return int32(i), true
		}
	}
	return 0, false
}

// ends is where each sequence ends.
func (c *fakeCache) ends() map[int]int32 {
	ends := make(map[int]int32)
	for _, cell := range c.cells {
		for _, seq := range cell.seqs {
			ends[seq] = max(ends[seq], cell.pos+1)
		}
	}
	return ends
}

// slide frees what is too far before a position, as StartForward does.
func (c *fakeCache) slide(seq int, pos int32) {
	for i := range c.cells {
		if c.memory != math.MaxInt32 && c.holds(i, seq) && c.cells[i].pos < pos-c.memory {
			c.drop(i, seq)
		}
	}
}

// visible are the cells of the rows that a position's own depends on.
func (c *fakeCache) visible(seq int, pos int32) []int32 {
	first := pos - 1
	if c.window != math.MaxInt32 {
		first = max(0, pos-c.window)
	}
	var cells []int32
	for at := max(0, first); at < pos; at++ {
		if cell, ok := c.cellOf(seq, at); ok {
			cells = append(cells, cell)
		}
	}
	return cells
}

// CanResume is upstream's.
func (c *fakeCache) CanResume(seq int, pos int32) bool {
	if c.memory == math.MaxInt32 {
		return true
	}
	first, last := int32(math.MaxInt32), int32(-1)
	for i := range c.cells {
		if c.holds(i, seq) {
			first, last = min(first, c.cells[i].pos), max(last, c.cells[i].pos)
		}
	}
	return last >= 0 && max(0, pos-c.window) >= first && pos <= last+1
}

func (c *fakeCache) ReserveCells(seq int, begin, end int32, preferred []int32) ([]int32, error) {
	ends := c.ends()
	ends[seq] = end
	for s, end := range ends {
		c.slide(s, end)
	}
	var cells []int32
	for pos := begin; pos < end; pos++ {
		cell, ok := int32(-1), false
		if preferred != nil && c.free(int(preferred[pos-begin])) {
			cell, ok = preferred[pos-begin], true
			c.cells[cell] = fakeCell{pos, []int{seq}}
		}
		if !ok {
			cell, ok = c.take(seq, pos)
		}
		if !ok {
			for _, cell := range cells {
				c.cells[cell].seqs = nil
			}
			return nil, ollama.ErrKvCacheFull
		}
		cells = append(cells, cell)
	}
	c.device.mu.Lock()
	defer c.device.mu.Unlock()
	for _, cell := range cells {
		c.unwritten[cell] = 2 * c.layers
	}
	return cells, nil
}

func (c *fakeCache) cellOf(seq int, pos int32) (int32, bool) {
	for i := range c.cells {
		if c.holds(i, seq) && c.cells[i].pos == pos {
			return int32(i), true
		}
	}
	return 0, false
}

func (c *fakeCache) Remove(seq int, begin, end int32) error {
	for i := range c.cells {
		if !c.holds(i, seq) {
			continue
		}
		switch pos := c.cells[i].pos; {
		case pos >= begin && pos < end:
			c.drop(i, seq)
		case pos >= end:
			if len(c.cells[i].seqs) > 1 {
				return errors.New("shifting cells shared by multiple sequences not supported")
			}
			c.cells[i].pos += begin - end
			c.device.hand(func() { c.turn(int32(i), begin-end) })
		}
	}
	return nil
}

// turn changes K of a cell in place, as rotating it by so many positions does. It is work
// of the device.
func (c *fakeCache) turn(cell, offset int32) {
	for l := range c.layers {
		turnRow(c.row(section{l, false}, cell), offset)
	}
}

func turnRow(row []byte, offset int32) {
	for i := range row {
		row[i] += byte(offset)
	}
}

func (c *fakeCache) ShiftRows(cells []int32, offset int32) error {
	if c.onShift != nil {
		if err := c.onShift(); err != nil {
			return err
		}
	}
	c.device.graph(func() {
		for _, cell := range cells {
			c.turn(cell, offset)
		}
	})
	return nil
}

func (c *fakeCache) CopyPrefix(src, dst int, n int32) {
	for i := range c.cells {
		c.drop(i, dst)
		if c.holds(i, src) && c.cells[i].pos < n {
			c.cells[i].seqs = append(c.cells[i].seqs, dst)
		}
	}
}

// build takes cells for a batch, as StartForward does.
func (c *fakeCache) build(t require.TestingT, batch input.Batch) {
	c.batchCells = nil
	begins := c.ends()
	for i := len(batch.Sequences) - 1; i >= 0; i-- {
		begins[batch.Sequences[i]] = batch.Positions[i]
	}
	for seq, begin := range begins {
		c.slide(seq, begin)
	}
	for i, seq := range batch.Sequences {
		cell, ok := c.take(seq, batch.Positions[i])
		require.True(t, ok, "cache full")
		c.batchCells = append(c.batchCells, cell)
	}
}

// compute writes the rows of a built batch, wherever its cells belong by now: a graph knows
// only cells. before are the cells that each input attends to, noted at build time. It is
// work of the device.
func (c *fakeCache) compute(tokens []int32, cells []int32, before [][]int32) {
	for i, token := range tokens {
		for l := range c.layers {
			for _, value := range []bool{false, true} {
				s := section{l, value}
				var previous []byte
				for _, cell := range before[i] {
					previous = append(previous, c.row(s, cell)...)
				}
				copy(c.row(s, cells[i]), rowAfter(s, previous, token, len(c.row(s, cells[i]))))
			}
		}
	}
}

// rowAfter is the row of a token that attends to the given rows. Computing it takes most of
// the time of the random interleavings, so what was computed is remembered.
func rowAfter(s section, previous []byte, token int32, n int) []byte {
	key := rowKey{s, string(previous), token, n}
	rowsSeen.Lock()
	defer rowsSeen.Unlock()
	if row, ok := rowsSeen.m[key]; ok {
		return row
	}
	if len(rowsSeen.m) >= 1<<17 || rowsSeen.m == nil {
		rowsSeen.m = make(map[rowKey][]byte)
	}
	h := sha256.New()
	fmt.Fprint(h, s.layer, s.value)
	h.Write(previous)
	_ = binary.Write(h, binary.LittleEndian, token)
	row := bytes.Repeat(h.Sum(nil), 2)[:n:n]
	rowsSeen.m[key] = row
	return row
}

type rowKey struct {
	section
	previous string
	token    int32
	n        int
}

var rowsSeen struct {
	sync.Mutex
	m map[rowKey][]byte
}

// wantRows are the rows of a prefix in one section, as an undisturbed engine computes them
// in a cache with the given window.
func wantRows(s section, window int32, tokens []int32, n int) [][]byte {
	if window == math.MaxInt32 {
		window = 1
	}
	var rows [][]byte
	for pos, token := range tokens {
		previous := bytes.Join(rows[max(0, pos-int(window)):], nil)
		rows = append(rows, rowAfter(s, previous, token, n))
	}
	return rows
}

// requireRows checks that a sequence's cells hold what its tokens give, as far as the next
// token attends to them, when all that was handed to the device is computed.
func (c *fakeCache) requireRows(t require.TestingT, seq int, tokens []int32) {
	c.device.later(func() { c.requireRowsNow(t, seq, tokens) })
}

// requireRowsNow is requireRows for what is there already. The device's mu is held.
func (c *fakeCache) requireRowsNow(t require.TestingT, seq int, tokens []int32) {
	held := c.held()[seq]
	for l := range c.layers {
		for _, value := range []bool{false, true} {
			s := section{l, value}
			n, _ := c.RowBytes(l, value)
			for pos, want := range wantRows(s, c.window, tokens, n) {
				if pos < len(tokens)-int(c.window) {
					continue
				}
				cell, ok := held[int32(pos)]
				if ok && bytes.Equal(want, c.row(s, cell)) {
					continue
				}
				require.True(t, ok, "sequence %d has no cell for position %d", seq, pos)
				require.Equal(t, want, c.row(s, cell), "sequence %d position %d cell %d layer %d value %v", seq, pos, cell, l, value)
			}
		}
	}
}

// fakeRunner drives a TieredCausal the way Ollama's runner does: batch n+1 is built while
// n is computed, slots are loaded at any time in between.
type fakeRunner struct {
	t      testing.TB
	mu     sync.Mutex // the runner's lock
	lock   sync.Locker
	cache  *fakeCache // keeps everything
	model  fakeModel  // of it and perhaps others
	device *fakeDevice
	tiered *TieredCausal
	timers *timers
	numCtx int
	batch  int
	nextID int
	flight []*fakeBatch
	slots  []*fakeSlot

	onCompute func(*fakeBatch)
}

type fakeSlot struct {
	id     int
	inputs []*input.Input // what the runner thinks the cache holds
	rest   []*input.Input
	inUse  bool
	// aborted: the request was given up while it was restored, and a window may be gone.
	aborted bool
	store   bool
	exact   int // positions whose rows follow from their tokens
}

type fakeBatch struct {
	id      int
	inputs  []*input.Input
	cells   [][]int32   // by cache
	before  [][][]int32 // by cache and input
	outputs bool        // the runner samples from it
	handed  int         // the device's work with it; 0: it is built only
}

func newFakeRunner(t testing.TB, store Store, slots, numCtx int, opts Options) *fakeRunner {
	r := &fakeRunner{t: t, numCtx: numCtx, batch: fakeBatchMax, cache: newFakeCache(slots*numCtx+1, 2)}
	opts.Store, opts.Layers, opts.AlwaysRestore = store, 2, true
	r.lock = &r.mu
	if opts.PageTokens == 0 {
		opts.PageTokens = 8
	}
	opts.Fingerprint[0] = 1
	r.device = r.cache.device
	r.model.caches = []*fakeCache{r.cache}
	r.tiered = New(r.model, r.model.rows(), opts)
	r.timers = withTimers(r.tiered.queue)
	t.Cleanup(r.tiered.Close)
	for i := range slots {
		r.slots = append(r.slots, &fakeSlot{id: i})
	}
	return r
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

// loadContext is loadInputs for a request that may be given up: then the slot is free again.
func (r *fakeRunner) loadContext(ctx context.Context, slot *fakeSlot, in []*input.Input, store bool) (Restored, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	require.False(r.t, slot.inUse)
	past := min(commonPrefix(slot.inputs, in), len(in)-1)
	if past > 0 && !r.model.CanResume(slot.id, int32(past)) {
		past = 0
	}
	require.NoError(r.t, r.tiered.Remove(slot.id, int32(past), math.MaxInt32))
	slot.inputs, slot.inUse, slot.aborted, slot.store = in[:past:past], true, false, store
	slot.exact = min(slot.exact, past)
	restored, err := r.tiered.Restore(ctx, r.lock, slot.id, past, in, func(n int) {
		slot.inputs, slot.exact = in[:n:n], min(slot.exact, n)
	})
	if base := restored.Held - restored.Tokens; restored.Tokens > 0 && base <= slot.exact {
		slot.exact = restored.Held - restored.Shifted
	}
	if err != nil {
		slot.inUse, slot.aborted = false, true
		return restored, err
	}
	slot.inputs, slot.rest = in[:restored.Held:restored.Held], in[restored.Held:]
	r.tiered.StartSequence(slot.id, store)
	return restored, nil
}

// fork gives a slot the longest beginning of a prompt that any other slot is said to hold,
// as findBestCacheSlot does with slots in use as well. It returns how much that is.
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

// build builds the next batch of all slots in use. It reports whether there was anything.
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
	r.tiered.BatchBuilt(b.id, batch, b.inputs, func(int) bool { return true }, func(seq int) bool { return ends[seq] })
	r.flight = append(r.flight, b)
	return true
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

// compute has the oldest built batch computed and reports it done. The device is only
// waited for where the batch has outputs.
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

// done reports a batch that was handed over as done.
func (r *fakeRunner) done(b *fakeBatch) {
	if b.outputs {
		r.device.readOutputs(r.t, b.handed)
	}
	r.tiered.BatchDone(b.id)
}

// shift drops positions [keep, keep+discard) of a slot, as the runner does while it builds
// a batch: the last one built is being computed, and those before it are done.
func (r *fakeRunner) shift(slot *fakeSlot, keep, discard int) {
	for len(r.flight) > 1 {
		r.compute()
	}
	r.launch()
	r.mu.Lock()
	err := r.tiered.Remove(slot.id, int32(keep), int32(keep+discard))
	if err == nil {
		slot.inputs = append(slot.inputs[:keep:keep], slot.inputs[keep+discard:]...)
		slot.exact = min(slot.exact, keep)
	} else { // cells shared with another slot: the runner starts over
		require.NoError(r.t, r.tiered.Remove(slot.id, 0, math.MaxInt32))
		slot.rest = append(slot.inputs, slot.rest...)
		slot.inputs, slot.exact = nil, 0
	}
	r.mu.Unlock()
	r.compute()
}

// finish ends a request.
func (r *fakeRunner) finish(slot *fakeSlot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tiered.EndSequence(slot.id)
	slot.inUse, slot.rest = false, nil
}

// drain builds and computes until every request's inputs are in.
func (r *fakeRunner) drain() {
	for r.build() || r.compute() {
	}
}

// run is a whole request: prompt, then generated tokens one at a time.
func (r *fakeRunner) run(slot *fakeSlot, prompt, generated []int32, store bool) Restored {
	restored := r.load(slot, prompt, store)
	r.drain()
	for _, token := range generated {
		slot.rest = inputsOf([]int32{token})
		r.drain()
	}
	r.finish(slot)
	return restored
}

// runInputs is run for a prompt with images, and generates nothing.
func (r *fakeRunner) runInputs(slot *fakeSlot, in []*input.Input) {
	r.loadInputs(slot, in, true)
	r.drain()
	r.finish(slot)
}

func (r *fakeRunner) flush() { require.NoError(r.t, r.tiered.Flush(r.t.Context())) }
