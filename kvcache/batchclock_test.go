package kvcache

import (
	"testing"
	"time"

	"github.com/ollama/ollama/model/input"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/rates"
)

// batchOf is a batch of 512 tokens at positions from begin on.
func batchOf(begin int32) input.Batch {
	var b input.Batch
	for i := range int32(512) {
		b.Positions = append(b.Positions, begin+i)
	}
	return b
}

// costsMoreThan reports whether a token's observed cost is more than each: whether a page
// that takes each per token is read.
func costsMoreThan(r *rates.Rates, each time.Duration) bool {
	c := rates.Chain{Pages: []rates.Page{{Tokens: 1000, Bytes: 1, Tier: each.String()}}}
	r.Watch(c, 1).Arrived(1000 * each)
	return r.Plan(c) == 1
}

func requireCost(t *testing.T, r *rates.Rates, each time.Duration) {
	t.Helper()
	require.True(t, costsMoreThan(r, each*99/100))
	require.False(t, costsMoreThan(r, each*101/100))
}

// newMeasured returns a batchClock, empty rates, and a function that lets time pass.
func newMeasured() (c batchClock, r *rates.Rates, pass func(time.Duration)) {
	now := &clock{now: time.Unix(1e9, 0)}
	c = newBatchClock()
	c.now = now.time
	return c, rates.New(), now.add
}

// A device may still compute a batch after the runner goes on, unless the runner waited for the device.
func TestBatchesAreMeasuredBetweenWaits(t *testing.T) {
	c, r, pass := newMeasured()

	c.batchBuilt(0, batchOf(0), false)
	c.batchBuilt(1, batchOf(512), false)
	pass(time.Millisecond)
	c.batchDone(0, false, r) // done at once, without a wait for the device
	c.batchBuilt(2, batchOf(1024), true)
	pass(time.Millisecond)
	c.batchDone(1, false, r)
	pass(1534 * time.Millisecond)
	c.batchDone(2, false, r)
	requireCost(t, r, time.Millisecond)
}

func TestTimeWithoutBatchesIsNotTheirs(t *testing.T) {
	c, r, pass := newMeasured()

	for i := range 4 { // each batch is built when the previous one is done, and an hour later
		c.batchBuilt(i, batchOf(0), i%2 == 1)
		pass(512 * time.Millisecond)
		c.batchDone(i, false, r)
		pass(time.Hour)
	}
	requireCost(t, r, time.Millisecond)
}

func TestBatchThatNobodySawBuilt(t *testing.T) {
	c := newBatchClock()
	c.batchDone(7, true, rates.New())
	require.Empty(t, c.built)
}

// The runner waits for the outputs of a batch with the end of a prompt or with an answer.
func TestBatchesWithOutputs(t *testing.T) {
	r := newFakeRunner(t, newMemStore(t), 1, 64, Options{})
	slot := r.slots[0]
	r.load(slot, tokenRange(1, 20), true)
	var outputs []bool
	build := func() {
		require.True(t, r.build())
		b := r.flight[len(r.flight)-1]
		require.Equal(t, b.outputs, r.tiered.device.clock.built[b.id].outputs)
		outputs = append(outputs, b.outputs)
	}
	build()
	build()
	slot.rest = inputsOf([]int32{901})
	build()
	require.Equal(t, []bool{false, true, true}, outputs)
	r.drain()
}
