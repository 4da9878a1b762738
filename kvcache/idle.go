package kvcache

import (
	"context"
	"slices"
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
