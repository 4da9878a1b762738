package kvcache

import (
	"time"

	"github.com/ollama/ollama/model/input"

	"github.com/kvtier/kvtier/kvcache/rates"
)

// batchClock measures what batches take. The device is only known to be done with one when
// it was waited for: for a batch's outputs, or for rows to be copied out. What was computed
// between two such moments is one observation. TieredCausal.mu guards it.
type batchClock struct {
	now   func() time.Time
	built map[int]builtBatch
	last  time.Time // when a batch was last done

	// Batches since the device was last waited for.
	open  builtBatch
	began time.Time // computing the first of them
}

// builtBatch is a batch, or several, that is not known to be computed.
type builtBatch struct {
	at        time.Time // it was built
	tokens    int
	positions int  // their sum
	outputs   bool // the runner waits for something that it computes
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

// batchDone notes that the runner goes on after a batch. waited says that the device was
// waited for.
func (c *batchClock) batchDone(id int, waited bool, r *rates.Rates) {
	b, ok := c.built[id]
	if !ok {
		return
	}
	delete(c.built, id)
	began, now := c.last, c.now()
	if idle := b.at.Sub(c.last); idle > 0 { // nothing was computed until this one was built
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
