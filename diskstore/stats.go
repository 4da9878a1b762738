package diskstore

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// TierStats is what one tier holds, over all fingerprints below its root.
// Changes other processes make show up at the next collection or Scan.
type TierStats struct {
	Pages int   // full pages
	Tails int   // incomplete last pages
	Bytes int64 // physical bytes of both
	Down  bool  // RAM: runners cannot be counted; local: the last Put failed; remote: the breaker is open
}

// Stats is a snapshot of what a store holds and of its counters since Open.
type Stats struct {
	// RAM is what this store keeps in memory; its Bytes are of memory.
	RAM           TierStats
	Local, Remote TierStats

	Puts       uint64 // pages and tails made durable
	PutErrors  uint64 // Puts that failed
	Hits       uint64 // Reads that returned rows
	RAMHits    uint64 // of these, from memory
	Misses     uint64 // Chains that found nothing, and Reads that found no page
	Damaged    uint64 // files found damaged
	Mismatched uint64 // files found to be another page than asked for
	Demoted    uint64 // pages moved from local to remote
	Promoted   uint64 // pages copied from remote to local
	Evicted    uint64 // pages deleted to stay within a budget
	TierErrors uint64 // operations that failed on a tier
	ReadBytes  uint64 // payload bytes that Read returned
	WroteBytes uint64 // file bytes that Put wrote
}

// counters are the monotonic part of Stats.
type counters struct {
	puts, putErrors, hits, misses, damaged, mismatched atomic.Uint64
	demoted, promoted, evicted, tierErrors             atomic.Uint64
	readBytes, wroteBytes, ramHits                     atomic.Uint64
}

// Stats returns the store's counters. It does no I/O.
func (s *Store) Stats() Stats {
	c := &s.counts
	st := Stats{
		Local: s.usage[tierLocal].stats(),
		Puts:  c.puts.Load(), PutErrors: c.putErrors.Load(),
		Hits: c.hits.Load(), RAMHits: c.ramHits.Load(), Misses: c.misses.Load(),
		Damaged: c.damaged.Load(), Mismatched: c.mismatched.Load(),
		Demoted: c.demoted.Load(), Promoted: c.promoted.Load(), Evicted: c.evicted.Load(),
		TierErrors: c.tierErrors.Load(),
		ReadBytes:  c.readBytes.Load(), WroteBytes: c.wroteBytes.Load(),
	}
	st.Local.Down = s.health.down()
	if s.warm != nil {
		st.RAM = s.warm.stats()
		st.RAM.Down = s.warmHealth.down()
	}
	if s.remote != nil {
		st.Remote = s.usage[tierRemote].stats()
		st.Remote.Down = s.remote.breaker.down()
	}
	return st
}

// tierUse is what a tier is believed to hold.
type tierUse struct {
	mu      sync.Mutex
	pages   int
	tails   int
	bytes   int64
	grown   int64     // bytes added since last counted
	counted time.Time // when last counted from scratch; zero for never
}

func (u *tierUse) stats() TierStats {
	u.mu.Lock()
	defer u.mu.Unlock()
	return TierStats{Pages: u.pages, Tails: u.tails, Bytes: u.bytes}
}

// commit counts a file that appeared, perhaps in the place of another.
func (u *tierUse) commit(done Committed) {
	files := 1
	if done.Replaced {
		files = 0
	}
	u.change(done.Class, files, done.Physical-done.Freed)
}

// remove counts a file that went.
func (u *tierUse) remove(info Info) { u.change(info.Class, -1, -info.Physical) }

func (u *tierUse) change(class Class, files int, bytes int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch class {
	case ClassPage:
		u.pages += files
	case ClassTail:
		u.tails += files
	default:
		return
	}
	u.bytes += bytes
	u.grown += max(0, bytes)
}

// set replaces what is believed by what was counted.
func (u *tierUse) set(infos []Info) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.pages, u.tails, u.bytes, u.grown, u.counted = 0, 0, 0, 0, time.Now()
	for _, info := range infos {
		if info.Class == ClassPage {
			u.pages++
		} else {
			u.tails++
		}
		u.bytes += info.Physical
	}
}

// stale reports whether a count is too old to go on adding to it, given the
// tier's budget: other processes write below the same root.
func (u *tierUse) stale(budget int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return time.Since(u.counted) > recountEvery || budget > 0 && u.grown > budget/recountShare
}

// state returns the bytes believed to be used and when they were counted.
func (u *tierUse) state() (bytes int64, counted time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.bytes, u.counted
}

// health logs once when writing to a tier begins to fail and once when it works
// again.
type health struct {
	log *slog.Logger
	mu  sync.Mutex
	bad bool
}

func (h *health) note(what string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err != nil && !h.bad:
		h.log.Warn("kv tier takes no pages, they will be computed again", "doing", what, "error", err)
	case err == nil && h.bad:
		h.log.Info("kv tier takes pages again")
	}
	h.bad = err != nil
}

func (h *health) down() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bad
}
