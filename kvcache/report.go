package kvcache

import (
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/why"
)

// Stats are counters since the cache was wrapped.
type Stats struct {
	SealedPages, SealedTails int64
	Restores, RestoredTokens int64
	RestoredBytes            int64
	// ShiftedTokens counts the RestoredTokens that were computed at another position.
	ShiftedTokens int64
	// LossyTokens counts the RestoredTokens from the first lossy page of a restore on.
	LossyTokens int64
	// DroppedPages counts pages, tails and states that could not be stored.
	DroppedPages int64
	// FailedCopies counts pages that could not be copied out of the cache.
	FailedCopies int64
}

// Stats returns the counters so far.
func (t *TieredCausal) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	stats := t.stats
	stats.FailedCopies += t.queue.failedCopies()
	return stats
}

// Fill adds to a report the numbers that Options.Meter does not have: the wrapper's counters, queue,
// slots and memory. Fill does no I/O.
func (t *TieredCausal) Fill(r *telemetry.Report) {
	stats, queue := t.Stats(), t.queue.content()
	r.Totals["ollama_kv_dropped_pages_total"] = float64(stats.DroppedPages)
	r.Totals["ollama_kv_failed_copies_total"] = float64(stats.FailedCopies)
	r.Totals[telemetry.Series("ollama_kv_gate_pages_total", "decision", "compute")] += 0 // reported from the beginning
	r.Gauges["ollama_kv_queue_pages"] = float64(queue.pages)
	r.Gauges["ollama_kv_queue_bytes"] = float64(queue.bytes)
	r.Gauges["ollama_kv_queue_limit_bytes"] = float64(queue.limit)
	r.Model.TokenBytes = t.tokenBytes()
	r.Slots = append(r.Slots, t.Slots()...)
	r.Busters = append(r.Busters, t.opts.Recents.Busters()...)
	r.Memory = append(r.Memory, t.Memory()...)
}

// TokenBytes is the number of bytes of K/V of one token in all layers of a model's caches; 0 while
// a cache has no memory. No batch may be built meanwhile.
func TokenBytes(rows []Rows, states States, layers int) int64 {
	geo, err := measure(groupsOf(rows), states, layers)
	if err != nil {
		return 0
	}
	return geo.tokenBytes()
}

func (t *TieredCausal) tokenBytes() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.caches.tokenBytes()
}

// residency is a slot's row of a report, before the queue and the store are asked.
type residency struct {
	telemetry.Slot
	keys   []pagefile.Key // of the slot's full pages
	stored []pagefile.Key // of pages that are stored near by or queued, the tail included
}

// Slots describes the slots that requests have used, in order, at most telemetry.SlotsMax. Cold
// counts pages that were found or stored in the local tier: another process may have evicted one
// since the slot's last request. Slots does no I/O.
func (t *TieredCausal) Slots() []telemetry.Slot {
	of := t.residencies()
	queued := t.queue.keys()
	memory, _ := t.store.Store.(interface{ InRAM(keys []pagefile.Key) int })
	slots := make([]telemetry.Slot, len(of))
	for i, s := range of {
		for _, key := range s.stored {
			if !queued[key] {
				s.Cold++
			}
		}
		if memory != nil {
			s.Warm = memory.InRAM(s.keys)
		}
		slots[i] = s.Slot
	}
	return slots
}

func (t *TieredCausal) residencies() []residency {
	t.mu.Lock()
	defer t.mu.Unlock()
	var of []residency
	for seq, s := range t.slots.of {
		r := residency{Slot: telemetry.Slot{ID: seq, Tokens: len(s.tokens), Shifted: s.broken, Lossy: s.lossy}, keys: slices.Clone(s.keys)}
		r.Bytes = t.caches.heldBytes(s)
		r.Hot = t.caches.pagesOf(r.Bytes, t.opts.PageTokens)
		r.Busy = t.accounts.open[seq] != nil || s.request == requestPrompt || s.request == requestAnswer
		for i, key := range s.keys {
			switch {
			case s.pages[i] != pageStored:
			case s.far[key]:
				r.Remote++
			default:
				r.stored = append(r.stored, key)
			}
		}
		if s.tail.tokens > len(s.keys)*t.opts.PageTokens && !s.tail.given {
			r.stored = append(r.stored, s.tail.key) // no key: it was restored
		}
		v := t.accounts.visits[seq]
		r.LastRestore, r.Restored, r.Saved = v.at, v.tokens, v.saved
		of = append(of, r)
	}
	slices.SortFunc(of, func(a, b residency) int { return a.ID - b.ID })
	return of[:min(len(of), telemetry.SlotsMax)]
}

// Memory lists the wrapper's memory. Buffers count from their allocation to the moment
// at which nothing refers to them; the collector of garbage frees them later.
func (t *TieredCausal) Memory() []telemetry.Memory {
	queue := t.queue.content()
	list := []telemetry.Memory{
		{Name: "write queue", Bytes: queue.bytes + queue.spare, Limit: queue.limit},
		{Name: "copy buffers", Bytes: queue.bounce},
		{Name: "texts of slots", Bytes: t.textBytes()},
	}
	if t.opts.Runs != nil {
		list = append(list, telemetry.Memory{Name: "index of moved text", Bytes: t.opts.Runs.Bytes()})
	}
	if t.opts.Recents != nil {
		list = append(list, telemetry.Memory{Name: "recent prompts", Bytes: t.opts.Recents.Bytes(), Limit: why.BytesMax})
	}
	return list
}

// textBytes is the memory of tokens, and of the cells of their rows.
func (t *TieredCausal) textBytes() (bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.slots.of {
		bytes += 4 * int64(cap(s.tokens))
		for _, cells := range s.cells {
			bytes += 4 * int64(cap(cells))
		}
		bytes += int64(len(pagefile.Key{})) * int64(cap(s.keys))
	}
	return bytes
}
