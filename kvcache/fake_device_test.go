package kvcache

import (
	"maps"
	"slices"
	"sync"

	"github.com/stretchr/testify/require"
)

// fakeDevice computes as late as a GPU may. Work that is handed to it waits in a queue and
// takes effect in order: when the host waits for it, or when a test lets it. What the host
// itself reads and writes takes effect at once, whatever is in the queue: a GPU copies on
// another stream than it computes on.
//
// The outputs of a batch lie in memory that the next graph of the scheduler overwrites.
type fakeDevice struct {
	mu     sync.Mutex // also of what the work changes
	queue  []func()
	handed int       // pieces of work so far
	memory []savable // that the work changes
	unread bool      // outputs of a batch are in the scheduler's memory
	lost   bool      // a graph of ours has overwritten them
	syncs  int       // how often the host waited for everything
	onSync func()    // before it waits
	every  int       // host copies after which the oldest work takes effect; 0: none do
	copies int       // host copies since one did
}

// savable is something that work on a device changes.
type savable interface {
	// save returns what brings back the content of now.
	save() (restore func())
}

// hand puts work into the queue, and returns how much was handed over with it.
func (d *fakeDevice) hand(work func()) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue = append(d.queue, work)
	d.handed++
	return d.handed
}

// graph is hand for a graph that shares its memory with the outputs of batches.
func (d *fakeDevice) graph(work func()) {
	d.hand(work)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lost = d.lost || d.unread
}

// synchronize waits for all work.
func (d *fakeDevice) synchronize() {
	if d.onSync != nil {
		d.onSync()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.syncs++
	for d.stepLocked() {
	}
}

// step lets the oldest work take effect. It reports whether there was any.
func (d *fakeDevice) step() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stepLocked()
}

func (d *fakeDevice) stepLocked() bool {
	if len(d.queue) == 0 {
		return false
	}
	d.queue[0]()
	d.queue = d.queue[1:]
	return true
}

// launched notes that a batch with outputs was handed over.
func (d *fakeDevice) launched() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unread = true
}

// readOutputs waits for the work up to a batch, whose outputs the runner reads.
func (d *fakeDevice) readOutputs(t require.TestingT, handed int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.handed-len(d.queue) < handed {
		d.stepLocked()
	}
	d.unread = false
	require.False(t, d.lost, "a graph was computed in the memory of outputs that were not read yet")
}

// copiedLocked notes a copy of the host's. Some work may take effect before the next.
func (d *fakeDevice) copiedLocked() {
	if d.copies++; d.every > 0 && d.copies >= d.every {
		d.copies = 0
		d.stepLocked()
	}
}

// pace lets the oldest work take effect after so many copies of the host's each.
func (d *fakeDevice) pace(every int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.every, d.copies = every, 0
}

// later shows memory as it will be when all work has taken effect, and changes nothing.
func (d *fakeDevice) later(look func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.memory {
		defer m.save()()
	}
	for _, work := range d.queue {
		work()
	}
	look()
}

// waits is how often the host waited for all work.
func (d *fakeDevice) waits() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.syncs
}

func (c *fakeCache) save() (restore func()) {
	rows := maps.Clone(c.rows)
	for s := range rows {
		rows[s] = slices.Clone(rows[s])
	}
	return func() { c.rows = rows }
}

// on moves a cache, that nothing was computed for yet, to a device.
func (c *fakeCache) on(d *fakeDevice) {
	c.device = d
	d.memory = append(d.memory, c)
}
