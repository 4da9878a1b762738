package diskstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/counted"
	"github.com/kvtier/kvtier/diskstore/internal/reuse"
	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// TierStats are the numbers of one tier, over all fingerprints below its root. Changes of
// other processes appear after the next collection or count.
type TierStats struct {
	Pages int   // full pages
	Tails int   // incomplete last pages
	Bytes int64 // physical bytes of both
	Down  bool  // RAM: the number of runners is unknown; local: the last Put failed or the directory cannot be used; remote: the breaker is open
}

// Stats is a snapshot of a store's numbers and of its counters since Open.
type Stats struct {
	// RAM describes the pages in memory; its Bytes are bytes of memory.
	RAM           TierStats
	Local, Remote TierStats

	// LocalBooked and RemoteBooked are the bytes that count against budgets: all files below a root,
	// temporary and quarantined ones included, and reservations of all processes; 0 while unknown.
	LocalBooked, RemoteBooked int64

	// LocalWritten and RemoteWritten are the bytes written on this UTC day, by all processes,
	// as far as recorded.
	LocalWritten, RemoteWritten int64

	Puts       uint64 // pages and tails made durable
	PutErrors  uint64 // Puts that failed
	Hits       uint64 // Reads that returned rows: the sum of the next four
	RAMHits    uint64 // of these, from memory
	LocalHits  uint64 // of these, from the local tier
	RemoteHits uint64 // of these, from the remote tier
	SharedHits uint64 // of these, copied from another Read of the same page at the same time
	Misses     uint64 // Chains and Reads that found no page
	Damaged    uint64 // files found damaged
	Mismatched uint64 // files found to be a page other than the requested one
	Demoted    uint64 // pages moved from local to remote
	Promoted   uint64 // pages copied from remote to local
	Evicted    uint64 // pages deleted to stay within a budget, in both tiers
	TierErrors uint64 // operations that failed on a tier
	ReadBytes  uint64 // payload bytes that Read returned
	RawBytes   uint64 // payload bytes of the pages that Put wrote
	WroteBytes uint64 // file bytes of these pages, after encoding

	// Pages that Options.Cold made lossy: the lossy files that this store wrote to the remote tier.
	LossyPages    uint64 // full pages and tails
	LossyRawBytes uint64 // payload bytes of these pages
	LossyBytes    uint64 // file bytes of these pages

	ThroughPages, ThroughBytes, ThroughFailed uint64 // pages written through, their file bytes, attempts that failed
	ThroughWaiting                            int    // pages that wait for it

	AheadPages uint64 // pages and tails that ReadAhead read
	AheadBytes uint64 // bytes of these pages in memory
	AheadUsed  uint64 // of these pages, those that a Read then returned from memory
	WriteCaps  uint64 // pages not written because of Options.WritePerDay

	LocalEvicted, RemoteEvicted         uint64 // the two parts of Evicted
	LocalQuarantined, RemoteQuarantined uint64 // files that this process has set aside

	// Full pages stored again that were among the last 16,384 to leave the local tier for want of room: those that
	// twice its room would have kept, those that four times would have kept, and the others. Pages that moved down
	// are none.
	ReturnedTwice, ReturnedFourTimes, ReturnedMore uint64

	// Pages that were added to the memory of Options.RAM: when they were stored, and when they
	// were read from a tier. RAMEvicted counts pages that left memory to make room there.
	RAMStored, RAMFromLocal, RAMFromRemote, RAMEvicted uint64

	// RAMLimit is this process's share of Options.RAM, in bytes. WholeBytes is the memory of
	// pages on their way from a tier into Options.RAM.
	RAMLimit, WholeBytes int64
	// WriteCap is Options.WritePerDay.
	WriteCap int64
}

type counters struct {
	puts, putErrors, hits, misses, damaged, mismatched atomic.Uint64
	demoted, promoted, tierErrors                      atomic.Uint64
	lossyPages, lossyRaw, lossyBytes                   atomic.Uint64
	readBytes, rawBytes, wroteBytes, writeCaps         atomic.Uint64
	ramHits, sharedHits                                atomic.Uint64
	aheadPages, aheadBytes, aheadUsed                  atomic.Uint64
	wholeBytes                                         atomic.Int64
}

type levelCounters struct {
	hits, evicted, quarantined, failed atomic.Uint64
	returned                           [reuse.Rooms]atomic.Uint64
}

// Stats returns the store's counters. Stats does no I/O.
func (s *Store) Stats() Stats {
	c := &s.counts
	st := Stats{
		Local: s.local.holding(),
		Puts:  c.puts.Load(), PutErrors: c.putErrors.Load(),
		Hits: c.hits.Load(), RAMHits: c.ramHits.Load(), SharedHits: c.sharedHits.Load(), Misses: c.misses.Load(),
		Damaged: c.damaged.Load(), Mismatched: c.mismatched.Load(),
		Demoted: c.demoted.Load(), Promoted: c.promoted.Load(),
		TierErrors: c.tierErrors.Load(),
		ReadBytes:  c.readBytes.Load(), RawBytes: c.rawBytes.Load(), WroteBytes: c.wroteBytes.Load(), WriteCaps: c.writeCaps.Load(),
		LossyPages: c.lossyPages.Load(), LossyRawBytes: c.lossyRaw.Load(), LossyBytes: c.lossyBytes.Load(),
		AheadPages: c.aheadPages.Load(), AheadBytes: c.aheadBytes.Load(), AheadUsed: c.aheadUsed.Load(),
		LocalHits: s.local.counts.hits.Load(), LocalEvicted: s.local.counts.evicted.Load(), LocalQuarantined: s.local.counts.quarantined.Load(),
		WholeBytes:   c.wholeBytes.Load(),
		WriteCap:     s.opt.WritePerDay,
		LocalWritten: s.local.book.State().Today,
	}
	returned := &s.local.counts.returned
	st.ReturnedTwice, st.ReturnedFourTimes, st.ReturnedMore = returned[reuse.Twice].Load(), returned[reuse.FourTimes].Load(), returned[reuse.More].Load()
	st.LocalBooked, _ = s.local.book.Figure()
	st.Local.Down = s.health.down() || s.disk.Down()
	held := s.ram.Stats()
	st.RAM = TierStats{Pages: held.Pages, Tails: held.Tails, Bytes: held.Bytes, Down: s.ram.health.down()}
	st.RAMStored, st.RAMFromLocal, st.RAMFromRemote, st.RAMEvicted = held.Stored, held.FromLocal, held.FromRemote, held.Evicted
	st.RAMLimit = held.Limit
	if s.remote != nil {
		st.Remote = s.remote.holding()
		st.Remote.Down = s.guard.Breaker.Down()
		st.RemoteBooked, _ = s.remote.book.Figure()
		st.RemoteWritten = s.remote.book.State().Today
		of := &s.remote.counts
		st.RemoteHits, st.RemoteEvicted, st.RemoteQuarantined = of.hits.Load(), of.evicted.Load(), of.quarantined.Load()
	}
	if t := s.through; t != nil {
		st.ThroughPages, st.ThroughBytes, st.ThroughFailed, st.ThroughWaiting = t.Sent.Load(), t.SentBytes.Load(), t.Failed.Load(), t.Waiting()
	}
	st.Evicted = st.LocalEvicted + st.RemoteEvicted
	return st
}

// holding returns the numbers of files, as far as this process knows.
func (lv *level) holding() (st TierStats) {
	st.Pages, st.Tails, st.Bytes = lv.files.Holding()
	return st
}

// Errors that Options.Trouble gets with pages that were stored.
var (
	ErrNoInodes = errors.New("the filesystem makes no more files although bytes are free, and pages leave although the budget has room; it is out of inodes, or a quota is reached")
	ErrCrowded  = errors.New("the filesystem is full, and pages leave although the budget has room")
)

// crowdedLasts is the time after a page left for want of space on the filesystem during which
// storing counts as crowded: the pages after it have the room that it left.
const crowdedLasts = time.Minute

// health notes whether a tier takes pages, and tells of it.
type health struct {
	log  *slog.Logger
	tell func(error) // Options.Trouble; nil: log gets a line when storing begins to fail, and when it works again
	now  func() time.Time

	mu        sync.Mutex
	bad       bool
	crowded   error // why pages left although the budget has room; nil after a page could not be stored
	crowdedAt time.Time
}

// crowd notes that bytes are wanted on a filesystem that took no file.
func (h *health) crowd(wanted, free int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.crowded, h.crowdedAt = ErrCrowded, h.now(); free > wanted {
		h.crowded = fmt.Errorf("%w: %d MB are free", ErrNoInodes, free/1e6)
	}
}

// note notes that storing has failed with err, or worked.
func (h *health) note(what string, err error) {
	h.mu.Lock()
	was, crowded := h.bad, h.crowded
	h.bad = err != nil
	unreachable := errors.Is(err, room.ErrUnreachable) // the page before it was not stored, which was told
	if err != nil && !unreachable {
		h.crowded = nil
	}
	if crowded != nil && h.now().Sub(h.crowdedAt) >= crowdedLasts {
		crowded = nil
	}
	h.mu.Unlock()
	switch {
	case h.tell != nil && err == nil:
		h.tell(crowded)
	case h.tell != nil && !unreachable:
		h.tell(fmt.Errorf("%s: %w", what, err))
	case h.tell != nil:
	case err != nil && !was:
		h.log.Warn("kv tier takes no pages, they will be computed again", "doing", what, "error", err)
	case err == nil && was:
		h.log.Info("kv tier takes pages again")
	}
}

func (h *health) down() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bad
}

// capped counts a page that the daily limit on writes keeps from being written, and tells of it. Other
// results of a reservation are ignored.
func (s *Store) capped(err error) {
	if !errors.Is(err, ledger.ErrWriteCap) {
		return
	}
	s.counts.writeCaps.Add(1)
	if s.opt.Trouble != nil {
		s.opt.Trouble(err)
	}
}

// FingerprintUsage describes the files of one fingerprint in one tier.
type FingerprintUsage struct {
	Fingerprint pagefile.Key
	Identity    map[string]string // nil when its manifest cannot be read
	Origin      string            // Options.Origin; "" when it is not known, and another text for several
	Pages       int
	Tails       int
	Bytes       int64       // physical
	LastUsed    time.Time   // zero when there is no page
	Hits        ledger.Hits // set by Root.Usage only

	// Unused is the time since the last use, the smaller of the values by this machine's clock
	// and by the filesystem's. Set by Reclaim only.
	Unused time.Duration
	// Tier is the tier that holds the pages. Set by Reclaim only.
	Tier string
}

// TierUsage is the result of Survey for one tier.
type TierUsage struct {
	Pages, Tails int                // of this store's fingerprint
	Bytes        int64              // physical, of this store's fingerprint
	RootBytes    int64              // physical, of all fingerprints below the root
	Lossy        FingerprintUsage   // lossy pages that stand for pages of this store's fingerprint
	Others       []FingerprintUsage // other fingerprints, in order of key
}

// Usage is the result of Survey.
type Usage struct {
	Local  TierUsage
	Remote TierUsage

	// RemoteErr is the reason for an empty Remote: nil when the tier was counted, or without a remote tier.
	RemoteErr error
}

// Survey returns the result of the count that Open begins in the background: Survey waits for
// that count and lists nothing again. Later changes are not in the result. Survey returns an error
// when the local tier cannot be listed.
func (s *Store) Survey(ctx context.Context) (Usage, error) {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return Usage{}, err
	}
	defer leave()
	var u Usage
	for _, lv := range s.tiers {
		found, err := lv.files.AwaitFirst(ctx, lv.counting...)
		if err != nil {
			err = fmt.Errorf("scan %s: %w", lv.where, err)
		}
		switch {
		case lv.far && err != nil:
			u.RemoteErr = err
		case lv.far:
			u.Remote = lv.usage(ctx, found)
		case err != nil:
			return Usage{}, err
		default:
			u.Local = lv.usage(ctx, found)
		}
	}
	return u, nil
}

func (lv *level) usage(ctx context.Context, found *counted.Tally) (u TierUsage) {
	for _, use := range lv.identify(ctx, found) {
		u.RootBytes += use.Bytes
		switch use.Fingerprint {
		case lv.pages.Exact:
			u.Pages, u.Tails, u.Bytes = use.Pages, use.Tails, use.Bytes
		case lv.pages.Lossy:
			u.Lossy = use
		default:
			u.Others = append(u.Others, use)
		}
	}
	return u
}

// identify returns the numbers and the identity of each fingerprint found, in order of key. A
// fingerprint without files may have a directory.
func (lv *level) identify(ctx context.Context, found *counted.Tally) []FingerprintUsage {
	fingerprints := slices.Clone(found.Known)
	slices.SortFunc(fingerprints, func(a, b pagefile.Key) int { return slices.Compare(a[:], b[:]) })
	uses := make([]FingerprintUsage, len(fingerprints))
	for i, fp := range fingerprints {
		uses[i].Fingerprint = fp
		if use := found.Fingerprints[fp]; use != nil {
			uses[i].Pages, uses[i].Tails, uses[i].Bytes, uses[i].LastUsed = use.Pages, use.Tails, use.Bytes, use.LastUsed
		}
		if m, err := tier.ReadManifest(ctx, lv.tier, fp); err == nil {
			uses[i].Identity, uses[i].Origin = m.Identity, m.Origin
		}
	}
	return uses
}
