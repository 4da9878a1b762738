package kvcache

import (
	"context"
	"slices"
	"sync"
)

// idleJob is called when no batch computes: at once where none is built, and otherwise when
// one is done and the next may not compute yet. Then nobody waits for the backend, and the
// outputs of the last batch, whose memory a graph would use, have been read.
type idleJob struct {
	after int         // the batch up to which all must be done
	lock  sync.Locker // the runner's where run needs it, nil where it does not
	run   func() error
	done  chan error // has room for one
}

// addIdleLocked arranges, with the runner's lock held unless the job does not care, for a job to
// be called, which is at once when no batch is built.
func (t *TieredCausal) addIdleLocked(job idleJob) *idleJob {
	job.done = make(chan error, 1)
	if len(t.flights) == 0 {
		job.done <- job.run()
	} else {
		t.idle = append(t.idle, &job)
	}
	return &job
}

// await waits for a job. The error is the job's, or the context's when it was not called.
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
	return <-job.done // is being called
}

// whenIdle runs something that computes a graph of its own. Nobody else's graph is computed
// meanwhile: no batch, and none of those that the runner computes while it builds one, since
// run has the runner's lock.
//
// The error is run's, or the context's when run was not called.
func (r *restoring) whenIdle(ctx context.Context, run func() error) (err error) {
	r.mu.Lock()
	job := r.addIdleLocked(idleJob{lock: r.lock, run: run})
	r.mu.Unlock()
	select {
	case err = <-job.done:
	default:
		r.unlocked(func() { err = r.await(ctx, job) })
	}
	return err
}

// awaitBuilt waits until every flight that is built by now is done.
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

// whenComputedLocked begins to wait, with the runner's lock held as well, until the device has
// computed every batch that is built by now, and all other graphs. A batch that is done may
// still be on the device, for nothing waits for it when it has no outputs.
func (t *TieredCausal) whenComputedLocked() *idleJob {
	return t.addIdleLocked(idleJob{after: t.lastBuiltLocked(), run: func() error {
		t.synchronize()
		return nil
	}})
}

// runIdle calls the jobs that wait for a batch, which is done while the next does not
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
		t.runJob(job)
	}
}

func (t *TieredCausal) runJob(job *idleJob) {
	if job.lock != nil {
		job.lock.Lock()
		defer job.lock.Unlock()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	job.done <- job.run()
}
