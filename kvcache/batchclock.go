package kvcache

import (
	"time"

	"github.com/ollama/ollama/model/input"

	"github.com/kvtier/kvtier/rates"
)

// batchClock measures the time of batches. A batch is known to be computed only after a
// wait for the device: for the batch's outputs, or for rows to be copied out. All batches
// computed between two such waits are one observation. TieredCausal.mu guards it.
type batchClock struct {
	now   func() time.Time
	built map[int]builtBatch
	last  time.Time // time at which the newest batch was done

	// Batches since the device was last waited for.
	open  builtBatch
	began time.Time // start of computing the first of them
}

// builtBatch is one batch, or the sum of several, not yet known to be computed.
type builtBatch struct {
	at        time.Time // time of building
	tokens    int
	positions int  // sum of the tokens' positions
	outputs   bool // the runner waits for the batch's outputs
}

func newBatchClock() batchClock {
	return batchClock{now: time.Now, built: make(map[int]builtBatch)}
}

func (c *batchClock) batchBuilt(id int, batch input.Batch, outputs bool) {
	b := builtBatch{at: c.now(), tokens: len(batch.Positions), outputs: outputs}
	for _, pos := range batch.Positions {
		b.positions += int(pos)
	}
	c.built[id] = b
}

// batchDone notes that the runner goes on after a batch. waited: the runner waited for the
// device.
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
	if c.open.tokens == 0 {
		c.began = began
	}
	c.open.tokens += b.tokens
	c.open.positions += b.positions
	if waited || b.outputs {
		r.Computed(c.open.tokens, float64(c.open.positions)/float64(c.open.tokens), now.Sub(c.began))
		c.open = builtBatch{}
	}
}
