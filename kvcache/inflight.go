package kvcache

import (
	"context"
	"iter"
	"slices"
	"sync"

	"github.com/ollama/ollama/model/input"
)

// inFlightBatch is a batch that is built and not yet computed. Tokens are behind pointers because the
// runner fills in a generated token only after sampling the previous batch. TieredCausal.mu guards it.
type inFlightBatch struct {
	id      int
	parts   []batchPart
	prompts []*account // of prompts that end with the batch
}

// batchPart is the share of one sequence in an in-flight batch: positions [begin, begin+len(inputs)),
// and their cells in each group.
type batchPart struct {
	seq       int
	begin     int32
	inputs    []*input.Input
	cells     [][]int32
	promptEnd bool
	shortened bool // positions that the batch computes were cut off

	// The text that rows attend to is fixed when the batch is built, even if the part is cut later.
	blind bool           // an input without identity is in the batch and changes rows before it
	ahead ahead          // rows that attend to later positions
	batch []*input.Input // inputs, before they were cut
}

// note sets blind and ahead of a part when the part is built for a slot's request.
func (part *batchPart) note(s *slot, of *identity) {
	part.batch = part.inputs
	read, identified := of.read(part.inputs)
	part.blind = !identified && of.backwards
	first := len(part.inputs)
	if !identified {
		first = len(read.tokens)
	}
	for _, m := range read.media {
		first = min(first, int(m.Offset))
	}
	for _, span := range read.spans {
		first = min(first, span.begin)
	}
	part.ahead = nothingAhead
	if first < len(part.inputs) && int(part.end()) > s.private {
		part.ahead = ahead{int(part.begin) + first, int(part.end())}
	}
}

// cut drops positions from n on.
func (part *batchPart) cut(n int32) {
	keep := max(0, min(int(n-part.begin), len(part.inputs)))
	if keep < len(part.inputs) {
		part.promptEnd, part.shortened = false, true
	}
	part.inputs = part.inputs[:keep]
	cells := make([][]int32, len(part.cells)) // a copied slot may share the old slices
	for g := range cells {
		cells[g] = part.cells[g][:keep]
	}
	part.cells = cells
}

func (part *batchPart) end() int32 { return part.begin + int32(len(part.inputs)) }

// addTo adds the part's computed positions to the slot, up to the first without identity.
func (part *batchPart) addTo(s *slot, of *identity) {
	if part.blind {
		s.broken = true
		return
	}
	read, identified := of.read(part.inputs)
	if of.reach > 0 && len(read.media) > 0 {
		identified = part.reach(&read, of) && identified
	}
	for i := range read.media {
		read.media[i].Offset += uint32(part.begin)
	}
	cells := make([][]int32, len(part.cells))
	for g := range cells {
		cells[g] = part.cells[g][:len(read.tokens)]
	}
	s.add(int(part.begin), read.tokens, read.media, cells)
	if !identified {
		s.broken = true
	}
	switch end := int(part.end()); {
	case part.ahead.begin >= end: // none, or cut off
	case part.ahead.end > end:
		s.saw(part.ahead)
	default:
		s.ahead = append(s.ahead, part.ahead)
	}
}

// reach notes that images among the inputs of a part attended to all of its batch. With an input
// without identity in the batch, the rows from the first image on have no
// identity: they are left out, and reach returns false.
func (part *batchPart) reach(read *prompt, of *identity) bool {
	batch, identified := of.read(part.batch)
	if !identified {
		read.tokens, read.media = read.tokens[:read.media[0].Offset], nil
		return false
	}
	batch.ends(0, len(batch.tokens))
	copy(read.media, batch.media)
	return true
}

// partsOf splits a batch by sequence. cells[g] are the cells of the batch in group g.
func partsOf(sequences []int, positions []int32, inputs []*input.Input, cells [][]int32, tracked func(seq int) bool) []batchPart {
	var parts []batchPart
	for i, seq := range sequences {
		if !tracked(seq) {
			continue
		}
		n := len(parts)
		if n == 0 || parts[n-1].seq != seq || parts[n-1].end() != positions[i] {
			parts = append(parts, batchPart{seq: seq, begin: positions[i], cells: make([][]int32, len(cells))})
			n++
		}
		part := &parts[n-1]
		part.inputs = append(part.inputs, inputs[i])
		for g := range cells {
			part.cells[g] = append(part.cells[g], cells[g][i])
		}
	}
	return parts
}

// idleJob is a function that runs while no batch computes: at once where no batch is built, and
// otherwise between two batches, as a part of [TieredCausal.BatchDone]. At that moment the backend is
// free, and the outputs of the last batch, whose memory a graph would use, have been read. A job must
// not need the runner's lock: the runner may hold the lock while it waits for the batch.
type idleJob struct {
	after int // id of the last batch that must be done before
	run   func() error
	done  chan error // capacity 1
}

// inFlight are the batches that are built and not done, in order, and the jobs that wait for a moment
// between two of them. mu is TieredCausal.mu, which guards both.
type inFlight struct {
	mu    *sync.Mutex
	built []*inFlightBatch
	idle  []*idleJob
}

// partsLocked yields the parts of a sequence, also those that were cut off, and their in-flight batches.
func (b *inFlight) partsLocked(seq int) iter.Seq2[*inFlightBatch, *batchPart] {
	return func(yield func(*inFlightBatch, *batchPart) bool) {
		for _, f := range b.built {
			for i := range f.parts {
				if part := &f.parts[i]; part.seq == seq && !yield(f, part) {
					return
				}
			}
		}
	}
}

// flyingLocked reports whether an in-flight batch will still add positions to a slot.
func (b *inFlight) flyingLocked(seq int) bool {
	for _, part := range b.partsLocked(seq) {
		if len(part.inputs) > 0 {
			return true
		}
	}
	return false
}

// busy reports whether any slot except seq computes.
func (b *inFlight) busy(seq int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.built, func(f *inFlightBatch) bool {
		return slices.ContainsFunc(f.parts, func(part batchPart) bool { return part.seq != seq && len(part.inputs) > 0 })
	})
}

// image reports whether a batch with an image of a sequence is not landed yet.
func (b *inFlight) image(seq int) bool {
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
func (b *inFlight) promptEndsNextLocked(f *inFlightBatch, seq int) bool {
	for other, part := range b.partsLocked(seq) {
		if other.id > f.id {
			return part.promptEnd
		}
	}
	return false
}

// lastBeginLocked is the last position at which an in-flight batch begins for a sequence with so many
// positions: at the sequence's end where the batch has no part of it.
func (b *inFlight) lastBeginLocked(seq, end int) int {
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

// findLocked returns an in-flight batch; nil if there is none.
func (b *inFlight) findLocked(id int) *inFlightBatch {
	if i := slices.IndexFunc(b.built, func(f *inFlightBatch) bool { return f.id == id }); i >= 0 {
		return b.built[i]
	}
	return nil
}

// landedLocked takes an in-flight batch out.
func (b *inFlight) landedLocked(landed *inFlightBatch) {
	b.built = slices.DeleteFunc(b.built, func(f *inFlightBatch) bool { return f == landed })
}

// cutLocked cuts positions of a sequence from n on off: their cells are about to be freed.
func (b *inFlight) cutLocked(seq int, n int32) {
	for _, part := range b.partsLocked(seq) {
		part.cut(n)
	}
}

// copyLocked gives a sequence the positions before n of another, in place of its own.
func (b *inFlight) copyLocked(from, to int, n int32) {
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
func (b *inFlight) afterLocked(job idleJob) *idleJob {
	job.done = make(chan error, 1)
	if len(b.built) == 0 {
		job.done <- job.run()
	} else {
		b.idle = append(b.idle, &job)
	}
	return &job
}

// await waits for a job. The error is the job's, or the context's when the job did not run.
func (b *inFlight) await(ctx context.Context, job *idleJob) error {
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

// awaitBuilt waits until every in-flight batch is done.
func (b *inFlight) awaitBuilt(ctx context.Context) error {
	b.mu.Lock()
	job := b.afterLocked(idleJob{after: b.lastLocked(), run: func() error { return nil }})
	b.mu.Unlock()
	return b.await(ctx, job)
}

// lastLocked is the id of the newest in-flight batch.
func (b *inFlight) lastLocked() int {
	if len(b.built) == 0 {
		return -1
	}
	return b.built[len(b.built)-1].id
}

// whenComputedLocked, called with the runner's lock held as well, returns a job that is
// done when the device has computed every in-flight batch and all other graphs. A batch
// without outputs may be done for the runner and still be running on the device.
func (b *inFlight) whenComputedLocked(device *progress) *idleJob {
	return b.afterLocked(idleJob{after: b.lastLocked(), run: func() error {
		device.synchronize()
		return nil
	}})
}

// between calls the jobs that wait for a batch. The batch is done, and the next does not compute yet.
func (b *inFlight) between(id int) {
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
