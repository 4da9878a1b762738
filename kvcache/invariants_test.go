package kvcache

import (
	"math"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// checkInvariants fails when the wrapper, the runner and the caches contradict each other.
// checkInvariants may be called whenever no lock is held, also during restores and batches.
func (r *fakeRunner) checkInvariants(t require.TestingT) {
	r.tiered.why.Wait(time.Minute) // prompts are recorded when they are explained
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tiered.mu.Lock()
	defer r.tiered.mu.Unlock()
	held := r.cache.held()
	for seq, s := range r.tiered.slots.of {
		checkSlot(t, r.tiered, seq, s)
		r.checkMirror(t, held[seq], seq, s)
	}
	r.checkShared(t)
	for _, f := range r.tiered.inFlight.built {
		for i := range f.parts {
			r.checkPart(t, held, &f.parts[i])
		}
	}
	for _, slot := range r.slots {
		for _, c := range r.model.caches {
			c.checkClaim(t, slot)
		}
		if s := r.tiered.slots.of[slot.id]; slot.inUse && !slot.store && s != nil {
			require.LessOrEqual(t, s.private, slot.own, "slot %d: rows of its private request may be stored", slot.id)
		}
	}
	r.tiered.queue.checkInvariants(t)
	r.checkAccountsLocked(t, false)
}

// held maps sequences to the cell of each position.
func (c *fakeCache) held() map[int]map[int32]int32 {
	held := make(map[int]map[int32]int32)
	for cell, at := range c.cells {
		for _, seq := range at.seqs {
			if held[seq] == nil {
				held[seq] = make(map[int32]int32)
			}
			held[seq][at.pos] = int32(cell)
		}
	}
	return held
}

// checkClaim checks that a slot has the rows that the runner believes it has: a cell for
// each position, and a row written there since a restore took the cell.
func (c *fakeCache) checkClaim(t require.TestingT, slot *fakeSlot) {
	held := c.held()[slot.id]
	c.device.mu.Lock()
	defer c.device.mu.Unlock()
	for pos := range slot.inputs {
		// no require here: even a passing check looks up its caller, which would take most of the time
		if cell, ok := held[int32(pos)]; !ok && c.memory == math.MaxInt32 {
			require.Fail(t, "", "slot %d claims %d positions and has no cell for %d", slot.id, len(slot.inputs), pos)
		} else if ok && c.unwritten[cell] > 0 {
			require.Fail(t, "", "slot %d claims %d positions, and the row of %d is not written", slot.id, len(slot.inputs), pos)
		}
	}
}

// checkSlot checks that a slot's fields agree with each other.
func checkSlot(t require.TestingT, c *TieredCausal, seq int, s *slot) {
	n, size := len(s.tokens), c.opts.PageTokens
	for g := range c.caches.groups {
		require.Len(t, s.cells[g], n, "slot %d: cells of group %d", seq, g)
		require.LessOrEqual(t, s.from[g], n, "slot %d: positions that group %d has dropped", seq, g)
		require.GreaterOrEqual(t, s.from[g], 0)
	}
	require.LessOrEqual(t, len(s.keys), n/size, "slot %d: keys of whole pages", seq)
	require.Len(t, s.pages, len(s.keys), "slot %d: states of its pages", seq)
	require.LessOrEqual(t, s.tail.tokens, n, "slot %d: its tail", seq)
	require.LessOrEqual(t, s.private, s.secret, "slot %d: rows that may not be stored", seq)
	require.GreaterOrEqual(t, s.private, 0)
	require.True(t, s.broken || !s.lossy, "slot %d: rows after lossy ones are taken to be exact", seq)
	parent := c.opts.Fingerprint
	for page, key := range s.keys {
		parent = pagefile.ChainKey(parent, s.tokens[page*size:(page+1)*size], pagefile.MediaWithin(s.media, page*size, size))
		require.Equal(t, parent, key, "slot %d: key of page %d", seq, page)
	}
	for _, a := range s.ahead {
		require.Less(t, a.begin, a.end)
	}
}

// checkMirror checks that a slot's rows are in its cells, in the cache that keeps all positions.
func (r *fakeRunner) checkMirror(t require.TestingT, held map[int32]int32, seq int, s *slot) {
	for g := range r.tiered.caches.groups {
		if r.tiered.caches.groups[g].windowed() {
			continue
		}
		for pos, cell := range s.cells[g] {
			if at, ok := held[int32(pos)]; !ok || at != cell {
				require.Fail(t, "", "slot %d takes position %d of %d to be in cell %d: %d, %v", seq, pos, len(s.tokens), cell, at, ok)
			}
		}
	}
}

// checkShared checks that a cell shared by two slots has the same text in both. The cache
// with a window may have freed the cell.
func (r *fakeRunner) checkShared(t require.TestingT) {
	if r.tiered.caches.groups[0].windowed() {
		return
	}
	for a, s := range r.tiered.slots.of {
		for b, other := range r.tiered.slots.of {
			if a >= b {
				continue
			}
			where := make(map[int32]int)
			for pos, cell := range s.cells[0] {
				where[cell] = pos
			}
			for pos, cell := range other.cells[0] {
				if at, ok := where[cell]; ok && (at != pos || !slices.Equal(s.tokens[:pos+1], other.tokens[:pos+1])) {
					require.Fail(t, "", "cell %d is position %d of slot %d and %d of slot %d, or of other text", cell, at, a, pos, b)
				}
			}
		}
	}
}

// checkPart checks that the cells of a built batch still belong to its sequence.
func (r *fakeRunner) checkPart(t require.TestingT, held map[int]map[int32]int32, p *batchPart) {
	for g := range r.tiered.caches.groups {
		require.Len(t, p.cells[g], len(p.inputs))
		if r.tiered.caches.groups[g].windowed() {
			continue
		}
		for i, cell := range p.cells[g] {
			at, ok := held[p.seq][p.begin+int32(i)]
			require.True(t, ok, "a batch of slot %d writes to a cell that is free", p.seq)
			require.Equal(t, at, cell)
		}
	}
}

// checkInvariants fails when the queue's counters are not those of its jobs.
func (q *writeQueue) checkInvariants(t require.TestingT) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var bytes int64
	for _, job := range q.jobs {
		bytes += job.bytes()
	}
	require.Equal(t, bytes, q.bytes)
	require.LessOrEqual(t, q.bytes, q.most)
	require.LessOrEqual(t, q.failedBytes(), q.staging())
	require.LessOrEqual(t, len(q.spare), spareBuffersMax)
}
