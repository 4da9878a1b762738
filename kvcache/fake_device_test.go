package kvcache

import (
	"maps"
	"slices"
	"sync"

	"github.com/stretchr/testify/require"
)

// fakeDevice computes as late as a GPU may. Work handed to the device waits in a queue and takes effect
// in order: when the host waits for it, or when a test steps the device. Reads and writes of the host
// take effect at once, even with work in the queue: a GPU copies on another stream than it computes on.
//
// The outputs of a batch lie in memory that the next graph of the scheduler overwrites.
type fakeDevice struct {
	mu     sync.Mutex // also guards memory that the work changes
	queue  []func()
	handed int       // number of pieces of work so far
	memory []savable // changed by the work
	unread bool      // the scheduler's memory holds unread outputs of a batch
	lost   bool      // a graph of the wrapper has overwritten them
	syncs  int       // number of waits for all work
	marks  int       // number of waits for a mark
	host   bool      // the device is the host's own processor
	onSync func()    // called before such a wait
	every  int       // host copies after which the oldest work takes effect; 0: never
	copies int       // host copies since the last such effect
	moved  transfers // between the host and the device so far
}

// transfers counts copies between the host and a device. A transfer moves bytes that lie
// side by side on the device, and the host waits for each.
type transfers struct{ count, bytes int }

// read counts a read of rows, which lie as in patch 0001: all in one piece where that moves
// at most four times as many rows, and otherwise each run of neighbouring cells alone.
func (m *transfers) read(cells []int32, rowBytes int) {
	if len(cells) == 0 {
		return
	}
	if span := int(slices.Max(cells)-slices.Min(cells)) + 1; span <= 4*len(cells) {
		m.count, m.bytes = m.count+1, m.bytes+span*rowBytes
	} else {
		m.write(cells, rowBytes)
	}
}

// write counts a write of rows: each run of neighbouring cells alone.
func (m *transfers) write(cells []int32, rowBytes int) {
	for i, cell := range cells {
		if i == 0 || cell != cells[i-1]+1 {
			m.count++
		}
	}
	m.bytes += len(cells) * rowBytes
}

// since counts the transfers after an earlier count.
func (m transfers) since(earlier transfers) transfers {
	return transfers{m.count - earlier.count, m.bytes - earlier.bytes}
}

// savable is memory that work on a device changes.
type savable interface {
	// save returns a function that restores the present content.
	save() (restore func())
}

// hand puts work into the queue, and returns the number of pieces handed over so far.
func (d *fakeDevice) hand(work func()) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue = append(d.queue, work)
	d.handed++
	return d.handed
}

// graph hands over a graph that shares its memory with the outputs of batches.
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

// mark returns a function that waits for all work so far, and for no later work.
func (d *fakeDevice) mark() (wait func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	handed := d.handed
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.marks++
		for d.handed-len(d.queue) < handed {
			d.stepLocked()
		}
	}
}

// step lets the oldest work take effect. step reports whether there was work.
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

// readOutputs waits for all work up to the batch whose outputs the runner reads.
func (d *fakeDevice) readOutputs(t require.TestingT, handed int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.handed-len(d.queue) < handed {
		d.stepLocked()
	}
	d.unread = false
	require.False(t, d.lost, "a graph was computed in the memory of outputs that were not read yet")
}

// copiedLocked counts a copy by the host, after which work may take effect.
func (d *fakeDevice) copiedLocked() {
	if d.copies++; d.every > 0 && d.copies >= d.every {
		d.copies = 0
		d.stepLocked()
	}
}

// pace lets the oldest work take effect after every so many copies by the host.
func (d *fakeDevice) pace(every int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.every, d.copies = every, 0
}

// later calls look with the memory as after all work, and then restores the memory.
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

// transfers counts the copies so far.
func (d *fakeDevice) transfers() transfers {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.moved
}

// waits is the number of the host's waits for all work.
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

// on moves a fresh cache to a device.
func (c *fakeCache) on(d *fakeDevice) {
	c.device = d
	d.memory = append(d.memory, c)
}
