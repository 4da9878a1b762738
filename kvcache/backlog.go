package kvcache

import (
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// backlog is the pages of a write queue, in order, and their memory. The queue's mu guards it.
type backlog struct {
	jobs    []*writeJob
	writing *writeJob // one of jobs
	bytes   int64     // sum over jobs
	most    int64     // bounds bytes; see [Options.QueuedBytes]
	bounced int64     // bytes of buffers for spans
	spare   [][]byte
	dropped []pagefile.Key // pages given up since the last takeDropped
}

// staging bounds the rows that wait to be written although they may stay in the cache, and
// separately the rows whose writing failed.
func (b *backlog) staging() int64 { return b.most / 4 }

// buffer returns a buffer for a page of size bytes, with padding bytes zero.
func (b *backlog) buffer(size int) []byte {
	for i, spare := range b.spare {
		if len(spare) == size {
			b.spare = append(b.spare[:i], b.spare[i+1:]...)
			return spare
		}
	}
	return make([]byte, size)
}

// remove takes a job out of the queue and keeps the job's buffer for reuse.
func (b *backlog) remove(job *writeJob) {
	i := slices.Index(b.jobs, job)
	b.jobs = slices.Delete(b.jobs, i, i+1)
	b.bytes -= job.bytes()
	if len(b.spare) < spareBuffersMax {
		b.spare = append(b.spare, job.page.Payload)
	}
}

// failedBytes sums the bytes of queued pages that have failed.
func (b *backlog) failedBytes() (n int64) {
	for _, job := range b.jobs {
		if job.tries > 0 {
			n += job.bytes()
		}
	}
	return n
}

// worst is the page with the most failed attempts that is not being written, or nil.
func (b *backlog) worst() *writeJob {
	var worst *writeJob
	for _, job := range b.jobs {
		if job != b.writing && job.tries > 0 && (worst == nil || job.tries > worst.tries) {
			worst = job
		}
	}
	return worst
}

// makeRoom makes room for size bytes of rows that cannot wait, or for which only pages that failed leave
// no room, by giving up pages that failed. It reports whether there is room.
func (b *backlog) makeRoom(size int64) bool {
	for b.bytes > 0 && b.bytes+size > b.most {
		worst := b.worst()
		if worst == nil {
			return false
		}
		b.drop(worst)
	}
	return true
}

// drop gives up a page, and the queued pages that continue it: a lookup could not reach them.
func (b *backlog) drop(job *writeJob) {
	gone := map[pagefile.Key]bool{job.key: true}
	b.remove(job)
	b.dropped = append(b.dropped, job.key)
	for more := true; more; {
		more = false
		for _, next := range slices.Clone(b.jobs) {
			if gone[next.page.Parent] && next != b.writing && b.giveUp(next) {
				gone[next.key], more = true, true
			}
		}
	}
}

// giveUp removes a page, or lets endCopies give it up: its buffer is being written to.
// giveUp reports whether the page was not given up before.
func (b *backlog) giveUp(job *writeJob) bool {
	switch c := job.copy; {
	case c == nil || !c.begun:
		b.remove(job)
		b.dropped = append(b.dropped, job.key)
	case c.doomed:
		return false
	default:
		c.doomed = true
	}
	return true
}

// bounce returns a buffer for spans, which is part of the backlog's bytes. There is no page.
func (b *backlog) bounce() []byte {
	buffer := make([]byte, min(bounceMax, b.most/16))
	b.most -= int64(len(buffer))
	b.bounced += int64(len(buffer))
	return buffer
}

// toCopy reports whether a row of a slot from position begin on is still to be copied.
func (b *backlog) toCopy(s *slot, begin int) bool {
	return slices.ContainsFunc(b.jobs, func(j *writeJob) bool {
		return j.copy != nil && j.copy.slot == s && j.copy.end > begin
	})
}

// queueHeld is the content of a write queue.
type queueHeld struct {
	pages               int
	bytes, spare, limit int64
	bounce              int64 // buffers for copies out of a device
}

func (b *backlog) held() queueHeld {
	h := queueHeld{pages: len(b.jobs), bytes: b.bytes, limit: b.most, bounce: b.bounced}
	for _, spare := range b.spare {
		h.spare += int64(len(spare))
	}
	return h
}
