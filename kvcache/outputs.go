package kvcache

import "sync"

// Outputs knows of which batches the runner has read the outputs. They lie in memory that
// the next graph of the scheduler uses: one that is computed while a batch is built, for a
// shift or an image, waits for them. Batches are computed, and read, in the order of their
// numbers.
type Outputs struct {
	mu     sync.Mutex
	read   sync.Cond
	last   int    // batch that was read
	onWait func() // is called before Await waits
}

// NewOutputs is for batches that are numbered from 0 on. onWait, for tests, is called before
// Await waits for any, and may be nil.
func NewOutputs(onWait func()) *Outputs {
	o := &Outputs{last: -1, onWait: onWait}
	o.read.L = &o.mu
	return o
}

// Read notes that the outputs of a batch were read, or that it has none.
func (o *Outputs) Read(batch int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = max(o.last, batch)
	o.read.Broadcast()
}

// Await returns when the outputs of a batch and all before were read. The batch is being
// computed, and nothing that the caller holds keeps that from ending.
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
