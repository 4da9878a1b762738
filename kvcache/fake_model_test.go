package kvcache

import (
	"testing"

	ollama "github.com/ollama/ollama/kvcache"
	"github.com/stretchr/testify/require"
)

// fakeModel is the caches of a model, as upstream's WrapperCache holds them.
type fakeModel struct {
	ollama.Cache // methods that only models call
	caches       []*fakeCache
}

func (m fakeModel) Close() {
	for _, c := range m.caches {
		c.Close()
	}
}

func (m fakeModel) CanResume(seq int, pos int32) bool {
	for _, c := range m.caches {
		if !c.CanResume(seq, pos) {
			return false
		}
	}
	return true
}

func (m fakeModel) CopyPrefix(src, dst int, n int32) {
	for _, c := range m.caches {
		c.CopyPrefix(src, dst, n)
	}
}

func (m fakeModel) Remove(seq int, begin, end int32) error {
	for _, c := range m.caches {
		if err := c.Remove(seq, begin, end); err != nil {
			return err
		}
	}
	return nil
}

func (m fakeModel) rows() []Rows {
	var rows []Rows
	for _, c := range m.caches {
		rows = append(rows, c)
	}
	return rows
}

func (m fakeModel) requireRows(t require.TestingT, seq int, tokens []int32) {
	for _, c := range m.caches {
		c.requireRows(t, seq, tokens)
	}
}

// compute hands a built batch to the device, and returns the number of pieces handed over so far.
func (m fakeModel) compute(b *fakeBatch) int {
	tokens := tokensOf(b.inputs)
	return m.caches[0].device.hand(func() {
		for i, c := range m.caches {
			c.compute(tokens, b.cells[i], b.before[i])
		}
	})
}

// A window of fakeWindow positions is not a multiple of a page, and its cache keeps more.
const (
	fakeWindow   = 10
	fakeMemory   = 13
	fakeBatchMax = 12
)

// newWindowedRunner is newFakeRunner with a second cache, which has a window, before the
// cache that keeps all positions.
func newWindowedRunner(t testing.TB, store Store, slots, numCtx int, opts Options) *fakeRunner {
	r := newFakeRunner(t, store, slots, numCtx, opts)
	return r.of(newWindow(r, slots), r.cache)
}

// newWindowOnlyRunner is newWindowedRunner without the cache that keeps all positions.
func newWindowOnlyRunner(t testing.TB, store Store, slots, numCtx int, opts Options) *fakeRunner {
	r := newFakeRunner(t, store, slots, numCtx, opts)
	r.cache = newWindow(r, slots)
	return r.of(r.cache)
}

func newWindow(r *fakeRunner, slots int) *fakeCache {
	if s, ok := r.tiered.opts.Store.(interface{ dropsRows() }); ok {
		s.dropsRows()
	}
	w := newFakeCache(slots*fakeMemory+fakeBatchMax, 1)
	w.window, w.memory = fakeWindow, fakeMemory
	w.on(r.device)
	return w
}

// of replaces the caches of a runner's model, before any batch.
func (r *fakeRunner) of(caches ...*fakeCache) *fakeRunner {
	r.tiered.Close()
	r.model.caches = caches
	opts := r.tiered.opts
	opts.Layers = 0
	for _, c := range caches {
		opts.Layers += c.layers
		c.closed = false
	}
	r.tiered = inPieces(New(r.model, r.model.rows(), opts))
	r.timers = withTimers(r.tiered.queue)
	r.t.Cleanup(r.tiered.Close)
	return r
}
