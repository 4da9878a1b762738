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

// addIdleLocked runs a job at once when no batch is built, and otherwise queues it. A job
// that computes a graph needs the runner's lock held here.
func (t *TieredCausal) addIdleLocked(job idleJob) *idleJob {
	job.done = make(chan error, 1)
	if len(t.flights) == 0 {
		job.done <- job.run()
	} else {
		t.idle = append(t.idle, &job)
	}
	return &job
}

// await waits for a job. The error is the job's, or the context's when the job did not run.
func (t *TieredCausal) await(ctx context.Context, job *idleJob) error {
	select {
	case err := <-job.done:
		return err
	case <-ctx.Done():
	}
	t.mu.Lock()
	i := slices.Index(t.idle, job)
	if i >= 0 {
		t.idle = slices.Delete(t.idle, i, i+1)
	}
	t.mu.Unlock()
	if i >= 0 {
		return ctx.Err()
	}
	return <-job.done // the job is running
}

// whenIdle calls run, which computes a graph of its own. No other graph is computed
// meanwhile: no batch, and no graph that the runner computes while it builds a batch, because
// that waits until BatchDone of the batch before has returned.
//
// The error is run's, or the context's when run was not called.
func (r *restoring) whenIdle(ctx context.Context, run func() error) (err error) {
	r.mu.Lock()
	job := r.addIdleLocked(idleJob{run: run})
	r.mu.Unlock()
	select {
	case err = <-job.done:
	default:
		r.unlocked(func() { err = r.await(ctx, job) })
	}
	return err
}

// awaitBuilt waits until every present flight is done.
func (t *TieredCausal) awaitBuilt(ctx context.Context) error {
	t.mu.Lock()
	job := t.addIdleLocked(idleJob{after: t.lastBuiltLocked(), run: func() error { return nil }})
	t.mu.Unlock()
	return t.await(ctx, job)
}

// lastBuiltLocked is the id of the newest flight.
func (t *TieredCausal) lastBuiltLocked() int {
	if len(t.flights) == 0 {
		return -1
	}
	return t.flights[len(t.flights)-1].id
}

// whenComputedLocked, called with the runner's lock held as well, returns a job that is
// done when the device has computed every present flight and all other graphs. A batch
// without outputs may be done for the runner and still be running on the device.
func (t *TieredCausal) whenComputedLocked() *idleJob {
	return t.addIdleLocked(idleJob{after: t.lastBuiltLocked(), run: func() error {
		t.synchronize()
		return nil
	}})
}

// runIdle calls the jobs that wait for a batch. The batch is done, and the next does not
// compute yet.
func (t *TieredCausal) runIdle(id int) {
	t.mu.Lock()
	var ready, later []*idleJob
	for _, job := range t.idle {
		if job.after <= id {
			ready = append(ready, job)
		} else {
			later = append(later, job)
		}
	}
	t.idle = later
	t.mu.Unlock()
	for _, job := range ready {
		t.mu.Lock() // anew for each: others need the lock between long jobs
		job.done <- job.run()
		t.mu.Unlock()
	}
}
