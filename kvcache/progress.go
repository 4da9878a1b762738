package kvcache

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ollama/ollama/model/input"

	"github.com/kvtier/kvtier/rates"
)

// progress is the work of the device, as far as it is known: the batches that are computed for certain.
// TieredCausal.mu guards it.
type progress struct {
	caches   *caches
	clock    batchClock
	computed bool    // the device was waited for since the last batch landed
	mark     *mark   // of the batches that have landed; nil before it is needed
	marks    []*mark // marks that may not be past
	landed   int     // the newest batch that has landed
}

// synchronize waits until the device has computed every batch.
func (d *progress) synchronize() {
	d.caches.synchronize()
	d.computed = true
}

// awaitRows waits until the device has computed all rows and states of slots.
func (d *progress) awaitRows() {
	if !d.computed {
		d.synchronize()
	}
}

// mark is a moment after which rows are computed.
type mark struct {
	batch int // the newest batch that had landed
	wait  func()
	past  atomic.Pointer[time.Time] // time at which wait ended; nil before
}

// atOnce is the mark of rows that are computed.
var atOnce = &mark{wait: func() {}}

// after returns a mark after which all rows of slots are computed.
func (d *progress) after(rows Beside) *mark {
	if d.computed {
		return atOnce
	}
	if d.mark == nil {
		m, now := &mark{batch: d.landed}, d.clock.now
		wait := rows.MarkRows()
		m.wait = sync.OnceFunc(func() {
			wait()
			at := now()
			m.past.Store(&at)
		})
		d.mark = m
		d.marks = append(d.marks, m)
	}
	return d.mark
}

// passed tells the clock of batches about marks that are past. A mark before such a mark
// is past as well, and nobody waits for it if its pages were given up.
func (d *progress) passed(r *rates.Rates) {
	n := 0
	for i, m := range d.marks {
		if at := m.past.Load(); at != nil {
			d.clock.computed(m.batch, *at, r)
			n = i + 1
		}
	}
	for _, m := range d.marks[:n] {
		m.wait() // frees the mark
	}
	d.marks = slices.Delete(d.marks, 0, n)
}

// handed notes that batches were handed to the device whose rows slots will have.
func (d *progress) handed() { d.computed, d.mark = false, nil }

// batchClock measures the time of batches. A batch is known to be computed only after a wait for the
// device: for the batch's outputs, or for rows to be copied out, perhaps after the runner went on. All
// batches between two such waits are one observation. TieredCausal.mu guards it.
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
