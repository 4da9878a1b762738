package kvcache

import (
	"time"

	"github.com/ollama/ollama/model/input"

	"github.com/kvtier/kvtier/rates"
)

// batchClock measures the time of batches. A batch is known to be computed only after a
// wait for the device: for the batch's outputs, or for rows to be copied out. All batches
// computed between two such waits are one observation. Rows copied beside batches are waited
// for later than the runner goes on; see computed. TieredCausal.mu guards it.
type batchClock struct {
	now   func() time.Time
	built map[int]builtBatch
	last  time.Time // time at which the newest batch was done

	open  []builtBatch // batches that are done and not known to be computed, oldest first
	began time.Time    // start of computing the first of them
}

// builtBatch is a batch that is not known to be computed.
type builtBatch struct {
	id        int
	at        time.Time // time of building
	tokens    int
	positions int  // sum of the tokens' positions
	outputs   bool // the runner waits for the batch's outputs
}

func newBatchClock() batchClock {
	return batchClock{now: time.Now, built: make(map[int]builtBatch)}
}

func (c *batchClock) batchBuilt(id int, batch input.Batch, outputs bool) {
	b := builtBatch{id: id, at: c.now(), tokens: len(batch.Positions), outputs: outputs}
	for _, pos := range batch.Positions {
		b.positions += int(pos)
	}
	c.built[id] = b
}

// batchDone notes that the runner goes on after a batch. waited: the runner waited for the device.
func (c *batchClock) batchDone(id int, waited bool, r *rates.Rates) {
	b, ok := c.built[id]
	if !ok {
		return
	}
	delete(c.built, id)
	began, now := c.last, c.now()
	if idle := b.at.Sub(c.last); idle > 0 { // the device was idle until this batch was built
		began = b.at
		c.began = c.began.Add(idle)
	}
	c.last = now
	if len(c.open) == 0 {
		c.began = began
	}
	c.open = append(c.open, b)
	if waited || b.outputs {
		c.computed(id, now, r)
	}
}

// computed notes that the device had computed a batch, and all before it, at a time.
func (c *batchClock) computed(id int, at time.Time, r *rates.Rates) {
	n, tokens, positions := 0, 0, 0
	for n < len(c.open) && c.open[n].id <= id {
		tokens += c.open[n].tokens
		positions += c.open[n].positions
		n++
	}
	if n == 0 {
		return
	}
	if took := at.Sub(c.began); took > 0 {
		r.Computed(tokens, float64(positions)/float64(tokens), took)
	}
	c.open, c.began = c.open[n:], at
	if at.After(c.last) { // the runner went on earlier
		c.last = at
	}
}
