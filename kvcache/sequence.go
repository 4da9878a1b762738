package kvcache

import (
	"context"
	"math"
	"sync"
	"time"

	ollama "github.com/ollama/ollama/kvcache"
	"github.com/ollama/ollama/model/input"

	"github.com/kvtier/kvtier/telemetry"
)

// Settle is called with the runner's lock held, and releases the lock while waiting. In a model with
// recurrent state it waits for the batches that are built: one of a sequence that has ended would
// overwrite a state restored for the next request. The error is the context's.
func (t *TieredCausal) Settle(ctx context.Context, lock sync.Locker) (err error) {
	if t.caches.stateful() {
		unlocked(lock, func() { err = t.inFlight.awaitBuilt(ctx) })
	}
	return err
}

// Restore is called with the runner's lock held, and releases the lock while it looks pages up and reads
// them. It extends, from the store, the part of a prompt that a slot holds: have tokens in a slot that is
// reserved for the request. The last token is always left to compute. With [Options.Runs], Restore goes
// on with text that was computed at other positions.
//
// While the lock is released, the runner may copy leading cells of the slot for other requests. So hold
// is called, with the lock held, before each release and before the return: hold tells the runner how
// many tokens of the prompt are in the slot's cells now. The number may be smaller than before.
//
// The error is the context's. A failure of the store is logged and makes Held smaller.
func (t *TieredCausal) Restore(ctx context.Context, lock sync.Locker, seq, have int, prompt []*input.Input, hold func(tokens int)) (Restored, error) {
	r := &restoring{restorer: &t.restorer, lock: lock, hold: hold, seq: seq, result: Restored{Held: have}}
	err := r.run(ctx, prompt)
	return r.result, err
}

// StartSequence begins a request, with the runner's lock held, in a slot that holds a prefix
// of its prompt. When store is false, rows computed for the request are not stored.
func (t *TieredCausal) StartSequence(seq int, store bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slots.at(seq)
	if !store && s.request == requestEnded && t.caches.divisible() {
		t.sealer.tail(s, true) // this request makes the tail longer by rows that are not stored
	}
	if store {
		// The request's own prompt has all text of the slot, and all that rows before secret attend to.
		s.private, s.ahead = min(s.secret, s.foreign), nil
	} else {
		s.private = min(s.private, len(s.tokens))
	}
	s.withheld = !store
	if a := t.accounts.open[seq]; a != nil {
		a.private = !store
	}
	t.why.begunLocked(seq, !store)
	t.sealer.noteDropped()
	s.anew()
	s.given, s.request = false, requestPrompt
}

// BatchBuilt notes, with the runner's lock held, where the rows of a batch will be: the cache's last
// StartForward was for this batch. tracked reports whether a sequence is a request for text, after any
// other of which its slot is emptied, and promptEnd whether a prompt ends with this batch.
func (t *TieredCausal) BatchBuilt(id int, batch input.Batch, inputs []*input.Input, tracked, promptEnd func(seq int) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sealer.ready()
	cells := make([][]int32, len(t.caches.groups))
	for g := range t.caches.groups {
		cells[g] = t.caches.groups[g].BatchCells()
	}
	f := &inFlightBatch{id: id, parts: partsOf(batch.Sequences, batch.Positions, inputs, cells, tracked)}
	outputs := false
	for i := range f.parts {
		part := &f.parts[i]
		s := t.slots.at(part.seq)
		part.note(s, &t.identity)
		if s.request == requestPrompt && promptEnd(part.seq) {
			s.request, part.promptEnd = requestAnswer, true
			if a := t.accounts.take(part.seq); a != nil {
				f.prompts = append(f.prompts, a)
			}
		}
		outputs = outputs || s.request != requestPrompt
	}
	t.device.clock.batchBuilt(id, batch, outputs)
	t.inFlight.built = append(t.inFlight.built, f)
}

// BatchDone copies out the pages that the batch completed, and then runs jobs that wait for a moment
// between batches: the batch's outputs are ready and the next batch has not begun to compute. BatchDone
// needs no lock of the runner's: the runner may hold it and wait for BatchDone, as before a shift, an
// image or any other graph that it computes while it builds a batch.
func (t *TieredCausal) BatchDone(id int) {
	if t.landBatch(id) {
		t.inFlight.between(id)
	}
}

// landBatch copies out the pages that a batch completed. False: there is no such batch in flight.
func (t *TieredCausal) landBatch(id int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.inFlight.findLocked(id)
	if f == nil {
		return false
	}
	t.device.passed(t.rates)
	t.device.landed = id
	t.landLocked(f)
	for _, a := range f.prompts {
		t.accounts.record(a, time.Since(a.began))
	}
	t.inFlight.landedLocked(f)
	t.healLocked(false)
	t.device.clock.batchDone(id, t.device.computed, t.rates)
	return true
}

func (t *TieredCausal) landLocked(f *inFlightBatch) {
	t.device.handed()
	for i := range f.parts {
		part := &f.parts[i]
		if len(part.inputs) == 0 {
			continue
		}
		s := t.slots.at(part.seq)
		part.addTo(s, &t.identity)
		t.caches.lost(s, int(part.begin)) // building the batch freed their cells
		t.sealer.seal(s, staying)
		switch {
		case t.caches.stateful():
			t.sealer.noteState(s, part, t.inFlight.promptEndsNextLocked(f, part.seq))
		case part.promptEnd && !t.caches.divisible(): // else the tail after the answer has the prompt's end
			t.sealer.tail(s, false)
		}
	}
}

// EndSequence saves, with the runner's lock held, a request's state, or its tail after
// Options.TailDelay.
func (t *TieredCausal) EndSequence(seq int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slots.at(seq)
	s.request, s.tailDue = requestEnded, t.queue.now().Add(t.opts.TailDelay)
	t.accounts.end(seq)
	t.why.endedLocked(seq, s)
	t.tellNoLayoutLocked(s)
	t.noteLostLocked(seq, s)
	t.sealer.seal(s, staying)
	if !t.inFlight.flyingLocked(seq) && t.sealer.tailDue(s) {
		t.sealer.tail(s, false)
	}
}

// tellNoLayoutLocked tells that nothing of a finished request can be stored, because the cache has
// not the layers that the model names.
func (t *TieredCausal) tellNoLayoutLocked(s *slot) {
	if t.caches.known() || s.withheld || len(s.tokens) < t.opts.PageTokens {
		return
	}
	if _, err := measure(t.caches.groups, t.caches.states, t.caches.layers); err != nil {
		t.opts.Unstored.Lost(telemetry.ObstacleLayout, err)
	}
}

// Remove forwards, with the runner's lock held, after complete pages in the range were copied out.
func (t *TieredCausal) Remove(seq int, begin, end int32) error {
	t.mu.Lock()
	if shift := end != math.MaxInt32; shift {
		t.beforeShiftLocked(seq, begin)
	} else {
		t.beforeTruncateLocked(seq, begin)
	}
	t.mu.Unlock()
	return t.Cache.Remove(seq, begin, end)
}

// beforeShiftLocked saves the rows of a slot from begin on, which are about to be removed or rotated in
// place. The runner shifts while it builds a batch, and after BatchDone of all batches before: there
// are no in-flight batches. Waiting for the device costs nothing, because the shift itself would wait.
func (t *TieredCausal) beforeShiftLocked(seq int, begin int32) {
	t.device.synchronize()
	s := t.slots.at(seq)
	t.noteLostLocked(seq, s)
	t.device.handed()
	t.why.shiftedLocked(seq, s)
	t.sealer.seal(s, int(begin))
	t.sealer.tail(s, true)
	t.queue.awaitCopies(s, int(begin))
	s.truncate(int(begin))
	s.trimKeys()
	s.broken = true
}

// beforeTruncateLocked saves the rows of a slot that is about to keep only positions before
// begin. Positions of in-flight batches from begin on are cut off: their cells are about to be freed.
func (t *TieredCausal) beforeTruncateLocked(seq int, begin int32) {
	s := t.slots.at(seq)
	t.noteLostLocked(seq, s)
	t.sealer.seal(s, int(begin))
	stays := t.sealer.tailStays(s, int(begin))
	if s.request == requestEnded && !stays && !(t.caches.stateful() && t.inFlight.flyingLocked(seq)) { // an in-flight batch may be changing the state
		t.sealer.tail(s, true)
	}
	t.inFlight.cutLocked(seq, begin)
	t.queue.awaitCopies(s, int(begin))
	if int(begin) <= len(s.tokens) {
		s.broken, s.lossy = false, false
	}
	s.truncate(int(begin))
	s.trimKeys()
	if s.request == requestEnded && !stays {
		s.request = requestNone
	}
}

// CopyPrefix forwards, with the runner's lock held, and makes the destination's mirror a
// copy of the source's, in-flight batches included.
func (t *TieredCausal) CopyPrefix(srcSeq, dstSeq int, n int32) {
	t.mu.Lock()
	dst := t.slots.at(dstSeq)
	t.noteLostLocked(dstSeq, dst)
	t.sealer.seal(dst, 0)
	if dst.request == requestEnded {
		t.sealer.tail(dst, true)
	}
	t.queue.awaitCopies(dst, 0)
	src := t.slots.at(srcSeq)
	t.noteLostLocked(srcSeq, src)
	t.slots.of[dstSeq] = src.clonePrefix(int(n))
	t.slots.of[dstSeq].early = src.early
	t.slots.of[dstSeq].trimKeys()
	t.inFlight.copyLocked(srcSeq, dstSeq, n)
	t.mu.Unlock()
	t.Cache.CopyPrefix(srcSeq, dstSeq, n)
}

// checkpointed is a TieredCausal over a cache that the runner asks where a sequence can go on.
type checkpointed struct {
	*TieredCausal
	ollama.CheckpointCache
}

// AsCache returns the wrapper for the runner. The result has CheckpointCache's method
// exactly if the wrapped cache has it.
func (t *TieredCausal) AsCache() ollama.Cache {
	if inner, ok := t.Cache.(ollama.CheckpointCache); ok {
		return checkpointed{t, inner}
	}
	return t
}

// Tiered is the wrapper behind the result of AsCache.
func (t *TieredCausal) Tiered() *TieredCausal { return t }
