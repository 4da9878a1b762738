package kvcache

import "slices"

/*
Copies beside batches. A device copies rows while it computes the next batch, so the batch loop
does not wait for them: a page is queued with its rows still in the device, and a goroutine of
the queue copies them, for all pages of one batch at once.

A batch writes to free cells only, and rows in a group without a window do not change until
their cells are freed or their K is rotated. So these calls wait for the copies of the slot's
rows that they end: Remove, for a shift or not, and CopyPrefix. A group with a window frees
cells when a batch is built: its rows, and states, are copied before the next batch may compute,
as all rows of a cache in host memory are.
*/

// copyOut is a queued page whose rows are still in the device.
type copyOut struct {
	slot   *slot
	end    int // the position after the page's last row
	mark   *mark
	rows   pageRows
	begun  bool
	doomed bool // given up while it was copied
}

// copier copies rows for a queue. The queue's mu guards it.
type copier struct {
	groups []group
	buffer []byte
	urgent int           // callers inside awaitCopies
	held   bool          // for tests: nothing is copied until somebody waits
	failed int64         // pages
	tell   func(error)   // called for such pages
	ended  chan struct{} // closed when the goroutine has ended; nil without one
}

// copiesFrom starts to copy rows of groups beside batches, if there are any. The queue is empty.
func (q *writeQueue) copiesFrom(groups []group, tell func(error)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range groups {
		if groups[i].later() && q.copier.ended == nil && !q.closed {
			q.copier.groups, q.copier.tell = groups, tell
			q.copier.buffer = q.bounce()
			q.copier.ended = make(chan struct{})
			go q.copyRows()
		}
	}
}

// takeBounce returns a buffer for spans, which is part of the queue's bytes. The queue is empty.
func (q *writeQueue) takeBounce() []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bounce()
}

func (q *writeQueue) copyRows() {
	defer close(q.copier.ended)
	groups := q.copier.groups
	for m := q.nextMark(); m != nil; m = q.nextMark() {
		m.wait()
		set, pages := q.beginCopies(m)
		q.endCopies(set, gatherSpans(groups, pages, func(g int) bool { return groups[g].later() }, q.copier.buffer))
	}
}

// nextMark waits for a page to copy, and returns its mark: nil when the queue is closed.
func (q *writeQueue) nextMark() *mark {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.closed {
		i := slices.IndexFunc(q.jobs, func(j *writeJob) bool { return j.copy != nil })
		if i >= 0 && (!q.copier.held || q.waiting > 0 || q.copier.urgent > 0) {
			return q.jobs[i].copy.mark
		}
		q.changed.Wait()
	}
	return nil
}

// beginCopies begins to copy the pages with a mark, which is past.
func (q *writeQueue) beginCopies(m *mark) (set []*writeJob, pages []pageRows) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, job := range q.jobs {
		if c := job.copy; c != nil && c.mark == m {
			c.begun = true
			set, pages = append(set, job), append(pages, c.rows)
		}
	}
	return set, pages
}

// endCopies lets pages be written whose rows were copied, and gives them up where that failed.
func (q *writeQueue) endCopies(set []*writeJob, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err != nil {
		q.copier.tell(err)
		q.copier.failed += int64(len(set))
	}
	for _, job := range set {
		doomed := job.copy.doomed
		job.copy = nil
		if doomed || err != nil {
			q.drop(job)
		}
	}
	q.armLocked()
	q.changed.Broadcast()
}

// awaitCopies waits until no row of a slot from position begin on is still to be copied.
func (q *writeQueue) awaitCopies(s *slot, begin int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.copier.urgent++
	defer func() { q.copier.urgent-- }()
	q.changed.Broadcast()
	for q.toCopy(s, begin) && !q.closed {
		q.changed.Wait()
	}
}

// failedCopies counts pages that could not be copied.
func (q *writeQueue) failedCopies() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.copier.failed
}

// endCopying waits for the goroutine of copies, after close: the device's memory is about to be freed.
func (q *writeQueue) endCopying() {
	q.mu.Lock()
	ended := q.copier.ended
	q.mu.Unlock()
	if ended != nil {
		<-ended
	}
}
