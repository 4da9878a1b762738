package kvcache

import (
	"context"
	"iter"
	"slices"
	"sync"

	"github.com/ollama/ollama/model/input"
)

// idleJob is a function that runs while no batch computes: at once where no batch is built,
// and otherwise between two batches, as a part of [TieredCausal.BatchDone]. At that moment the
// backend is free, and the outputs of the last batch, whose memory a graph would use, have
// been read. A job must not need the runner's lock: the runner may hold the lock while it
// waits for the batch.
type idleJob struct {
	after int // id of the last batch that must be done before
	run   func() error
	done  chan error // capacity 1
}

// flights are the batches that are built and not done, in order, and the jobs that wait for a moment
// between two of them. mu is TieredCausal.mu, which guards both.
type flights struct {
	mu    *sync.Mutex
	built []*flight
	idle  []*idleJob
}

// partsLocked yields the parts of a sequence, also those that were cut off, and their flights.
func (b *flights) partsLocked(seq int) iter.Seq2[*flight, *flightPart] {
	return func(yield func(*flight, *flightPart) bool) {
		for _, f := range b.built {
			for i := range f.parts {
				if part := &f.parts[i]; part.seq == seq && !yield(f, part) {
					return
				}
			}
		}
	}
}

// flyingLocked reports whether a flight will still add positions to a slot.
func (b *flights) flyingLocked(seq int) bool {
	for _, part := range b.partsLocked(seq) {
		if len(part.inputs) > 0 {
			return true
		}
	}
	return false
}

// busy reports whether any slot except seq computes.
func (b *flights) busy(seq int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.built {
		for i := range f.parts {
			if part := &f.parts[i]; part.seq != seq && len(part.inputs) > 0 {
				return true
			}
		}
	}
	return false
}

// image reports whether a batch with an image of a sequence is not landed yet.
func (b *flights) image(seq int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, part := range b.partsLocked(seq) {
		if slices.ContainsFunc(part.inputs, func(in *input.Input) bool { return in.MultimodalHash != 0 }) {
			return true
		}
	}
	return false
}

// promptEndsNextLocked reports whether a sequence's prompt ends with its next batch after f.
func (b *flights) promptEndsNextLocked(f *flight, seq int) bool {
	for other, part := range b.partsLocked(seq) {
		if other.id > f.id {
			return part.promptEnd
		}
	}
	return false
}

// lastBeginLocked is the last position at which a flight begins for a sequence with so many
// positions: at the sequence's end where the flight has no part of it.
func (b *flights) lastBeginLocked(seq, end int) int {
	last := end
	for _, f := range b.built {
		at := end
		for i := range f.parts {
			if part := &f.parts[i]; part.seq == seq && len(part.inputs) > 0 {
				at = min(at, int(part.begin))
				end = max(end, int(part.end()))
			}
		}
		last = max(last, at)
	}
	return last
}

// findLocked returns a flight; nil if there is none.
func (b *flights) findLocked(id int) *flight {
	if i := slices.IndexFunc(b.built, func(f *flight) bool { return f.id == id }); i >= 0 {
		return b.built[i]
	}
	return nil
}

// landedLocked takes a flight out.
func (b *flights) landedLocked(landed *flight) {
	b.built = slices.DeleteFunc(b.built, func(f *flight) bool { return f == landed })
}

// cutLocked cuts positions of a sequence from n on off: their cells are about to be freed.
func (b *flights) cutLocked(seq int, n int32) {
	for _, part := range b.partsLocked(seq) {
		part.cut(n)
	}
}

// copyLocked gives a sequence the positions before n of another, in place of its own.
func (b *flights) copyLocked(from, to int, n int32) {
	for _, f := range b.built {
		for i := range f.parts {
			switch part := &f.parts[i]; part.seq {
			case to:
				part.cut(part.begin)
			case from:
				shared := *part
				shared.seq, shared.promptEnd = to, false
				shared.cut(n)
				f.parts = append(f.parts, shared)
			}
		}
	}
}

// afterLocked runs a job at once when no batch is built, and otherwise queues it. A job
// that computes a graph needs the runner's lock held here.
func (b *flights) afterLocked(job idleJob) *idleJob {
	job.done = make(chan error, 1)
	if len(b.built) == 0 {
		job.done <- job.run()
	} else {
		b.idle = append(b.idle, &job)
	}
	return &job
}

// await waits for a job. The error is the job's, or the context's when the job did not run.
func (b *flights) await(ctx context.Context, job *idleJob) error {
	select {
	case err := <-job.done:
		return err
	case <-ctx.Done():
	}
	b.mu.Lock()
	i := slices.Index(b.idle, job)
	if i >= 0 {
		b.idle = slices.Delete(b.idle, i, i+1)
	}
	b.mu.Unlock()
	if i >= 0 {
		return ctx.Err()
	}
	return <-job.done // the job is running
}

// awaitBuilt waits until every present flight is done.
func (b *flights) awaitBuilt(ctx context.Context) error {
	b.mu.Lock()
	job := b.afterLocked(idleJob{after: b.lastLocked(), run: func() error { return nil }})
	b.mu.Unlock()
	return b.await(ctx, job)
}

// lastLocked is the id of the newest flight.
func (b *flights) lastLocked() int {
	if len(b.built) == 0 {
		return -1
	}
	return b.built[len(b.built)-1].id
}

// whenComputedLocked, called with the runner's lock held as well, returns a job that is
// done when the device has computed every present flight and all other graphs. A batch
// without outputs may be done for the runner and still be running on the device.
func (b *flights) whenComputedLocked(device *progress) *idleJob {
	return b.afterLocked(idleJob{after: b.lastLocked(), run: func() error {
		device.synchronize()
		return nil
	}})
}

// between calls the jobs that wait for a batch. The batch is done, and the next does not
// compute yet.
func (b *flights) between(id int) {
	b.mu.Lock()
	var ready, later []*idleJob
	for _, job := range b.idle {
		if job.after <= id {
			ready = append(ready, job)
		} else {
			later = append(later, job)
		}
	}
	b.idle = later
	b.mu.Unlock()
	for _, job := range ready {
		b.mu.Lock() // anew for each: others need the lock between long jobs
		job.done <- job.run()
		b.mu.Unlock()
	}
}
