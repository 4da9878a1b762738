package kvcache

import "sync"

// Outputs tracks the batches whose outputs the runner has read, in the order of their numbers. Outputs
// lie in memory that the scheduler's next graph overwrites: a graph that is computed while a batch is
// built, for a shift or an image, waits until earlier outputs are read.
type Outputs struct {
	mu     sync.Mutex
	read   sync.Cond
	last   int    // newest batch that was read
	onWait func() // for tests, may be nil
}

// NewOutputs tracks batches from 0 on. onWait, for tests, is called before Await waits; it may be nil.
func NewOutputs(onWait func()) *Outputs {
	o := &Outputs{last: -1, onWait: onWait}
	o.read.L = &o.mu
	return o
}

// Read notes that the outputs of a batch were read, or that the batch has none.
func (o *Outputs) Read(batch int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = max(o.last, batch)
	o.read.Broadcast()
}

// Done reports whether the outputs of a batch were read.
func (o *Outputs) Done(batch int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last >= batch
}

// Await returns when the outputs of a batch and of all earlier batches were read. The batch
// must be under way already, and the caller must hold no lock that the batch needs to end.
func (o *Outputs) Await(batch int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last < batch && o.onWait != nil {
		o.onWait()
	}
	for o.last < batch {
		o.read.Wait()
	}
}
