package kvcache

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
