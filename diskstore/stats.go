package diskstore

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// TierStats is what one tier holds, over all fingerprints below its root.
// Changes other processes make show up at the next collection or Scan.
type TierStats struct {
	Pages int   // full pages
	Tails int   // incomplete last pages
	Bytes int64 // physical bytes of both
	Down  bool  // RAM: runners cannot be counted; local: the last Put failed or the directory cannot be used; remote: the breaker is open
}

// Stats is a snapshot of what a store holds and of its counters since Open.
type Stats struct {
	// RAM is what this store keeps in memory; its Bytes are of memory.
	RAM           TierStats
	Local, Remote TierStats

	// LocalBooked and RemoteBooked are the figures that budgets are held to:
	// what all files below a root occupy, temporary and quarantined ones and
	// what all processes have reserved included; 0 before that is known.
	LocalBooked, RemoteBooked int64

	// LocalWritten and RemoteWritten are the bytes written on this UTC day, by
	// all processes as far as they have recorded it.
	LocalWritten, RemoteWritten int64

	Puts       uint64 // pages and tails made durable
	PutErrors  uint64 // Puts that failed
	Hits       uint64 // Reads that returned rows
	RAMHits    uint64 // of these, from memory
	SharedHits uint64 // of these, copied from another Read of the same page at the same time
	Misses     uint64 // Chains that found nothing, and Reads that found no page
	Damaged    uint64 // files found damaged
	Mismatched uint64 // files found to be another page than asked for
	Demoted    uint64 // pages moved from local to remote
	Promoted   uint64 // pages copied from remote to local
	Evicted    uint64 // pages deleted to stay within a budget
	TierErrors uint64 // operations that failed on a tier
	ReadBytes  uint64 // payload bytes that Read returned
	WroteBytes uint64 // file bytes that Put wrote
	AheadPages uint64 // pages and tails that ReadAhead has read
	AheadBytes uint64 // what they took in memory
	WriteCaps  uint64 // pages not written because of Options.WritePerDay
}

// counters are the monotonic part of Stats.
type counters struct {
	puts, putErrors, hits, misses, damaged, mismatched atomic.Uint64
	demoted, promoted, evicted, tierErrors             atomic.Uint64
	readBytes, wroteBytes, writeCaps, ramHits          atomic.Uint64
	aheadPages, aheadBytes, sharedHits                 atomic.Uint64
}

// Stats returns the store's counters. It does no I/O.
func (s *Store) Stats() Stats {
	c := &s.counts
	st := Stats{
		Local: s.local.use.stats(),
		Puts:  c.puts.Load(), PutErrors: c.putErrors.Load(),
		Hits: c.hits.Load(), RAMHits: c.ramHits.Load(), SharedHits: c.sharedHits.Load(), Misses: c.misses.Load(),
		Damaged: c.damaged.Load(), Mismatched: c.mismatched.Load(),
		Demoted: c.demoted.Load(), Promoted: c.promoted.Load(), Evicted: c.evicted.Load(),
		TierErrors: c.tierErrors.Load(),
		ReadBytes:  c.readBytes.Load(), WroteBytes: c.wroteBytes.Load(), WriteCaps: c.writeCaps.Load(),
		AheadPages: c.aheadPages.Load(), AheadBytes: c.aheadBytes.Load(),
		LocalWritten: s.local.book.Today(),
	}
	st.LocalBooked, _ = s.local.book.Figure()
	st.Local.Down = s.health.down() || s.disk.Down()
	if s.ram != nil {
		held := s.ram.Stats()
		st.RAM = TierStats{Pages: held.Pages, Tails: held.Tails, Bytes: held.Bytes, Down: s.ramHealth.down()}
	}
	if s.remote != nil {
		st.Remote = s.remote.use.stats()
		st.Remote.Down = s.guard.Breaker.Down()
		st.RemoteBooked, _ = s.remote.book.Figure()
		st.RemoteWritten = s.remote.book.Today()
	}
	return st
}

// tierUse is what a tier is believed to hold.
type tierUse struct {
	mu    sync.Mutex
	files holding
	when  time.Time     // when last counted from scratch; zero for never
	took  time.Duration // how long that took

	// While files are counted: what has been listed, and the shards that have
	// not been. A change in one of those is seen when it is listed.
	listing holding
	todo    map[tier.Shard]bool // nil when nobody counts

	// While the shards are looked up: what happens, for those that are missed.
	early   []earlyChange
	looking bool
}

// earlyChange is a change while the shards of a count are looked up.
type earlyChange struct {
	name  pagefile.Name
	files int
	bytes int64
}

// holding is a number of files.
type holding struct {
	pages, tails int
	bytes        int64
}

func (h *holding) add(class pagefile.Class, files int, bytes int64) {
	if class == pagefile.ClassTail {
		h.tails += files
	} else {
		h.pages += files
	}
	h.bytes += bytes
}

func (u *tierUse) stats() TierStats {
	u.mu.Lock()
	defer u.mu.Unlock()
	return TierStats{Pages: u.files.pages, Tails: u.files.tails, Bytes: u.files.bytes}
}

// commit counts a file that appeared, perhaps in the place of another.
func (u *tierUse) commit(done tier.Committed) {
	files := 1
	if done.Replaced {
		files = 0
	}
	u.change(done.Name, files, done.Physical-done.Freed)
}

// remove counts a file that went.
func (u *tierUse) remove(info tier.Info) { u.change(info.Name, -1, -info.Physical) }

func (u *tierUse) change(name pagefile.Name, files int, bytes int64) {
	if name.Class == pagefile.ClassManifest {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.files.add(name.Class, files, bytes)
	if u.looking {
		u.early = append(u.early, earlyChange{name, files, bytes})
	}
	if u.todo != nil && !u.todo[tier.ShardOf(name)] {
		u.listing.add(name.Class, files, bytes)
	}
}

// prepare comes before a count looks up its shards, begin after that.
func (u *tierUse) prepare() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.looking = true
}

// begin begins a count of these shards.
func (u *tierUse) begin(shards []tier.Shard) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.listing, u.todo = holding{}, make(map[tier.Shard]bool, len(shards))
	for _, shard := range shards {
		u.todo[shard] = true
	}
	for _, c := range u.early {
		if !u.todo[tier.ShardOf(c.name)] {
			u.listing.add(c.name.Class, c.files, c.bytes)
		}
	}
	u.early, u.looking = nil, false
}

// listed counts the files of one shard.
func (u *tierUse) listed(shard tier.Shard, infos []tier.Info) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.todo, shard)
	for _, info := range infos {
		u.listing.add(info.Class, 1, info.Physical)
	}
}

// end replaces what is believed by what was counted, which took some time, and
// returns its bytes.
func (u *tierUse) end(took time.Duration) int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.files, u.todo, u.when, u.took = u.listing, nil, time.Now(), took
	return u.files.bytes
}

// abandon ends a count that has not come to its end.
func (u *tierUse) abandon() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.todo, u.early, u.looking = nil, nil, false
}

// counted returns when files were last counted, and how long that took.
func (u *tierUse) counted() (time.Time, time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.when, u.took
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

// capNote counts pages that the day's limit on writes keeps from being written,
// and logs once when it begins to and once when it has ended.
type capNote struct {
	log   *slog.Logger
	pages *atomic.Uint64
	mu    sync.Mutex
	over  bool
}

func (c *capNote) note(err error) {
	capped := errors.Is(err, ledger.ErrWriteCap)
	if !capped && err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case capped && !c.over:
		c.log.Warn("kv tier has written as much as it may in a day, pages are not stored before the next one (UTC)", "error", err)
	case !capped && c.over:
		c.log.Info("kv tier may write again")
	}
	if c.over = capped; capped {
		c.pages.Add(1)
	}
}
