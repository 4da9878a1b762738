package diskstore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/branch"
	"github.com/kvtier/kvtier/diskstore/internal/checked"
	"github.com/kvtier/kvtier/diskstore/internal/counted"
	"github.com/kvtier/kvtier/diskstore/internal/names"
	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/internal/tombstones"
	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/internal/steady"
)

// level is one tier of a store: the local one, or the remote one below it.
type level struct {
	name   string // tier.Local or tier.Remote
	far    bool   // the remote tier
	config TierConfig
	where  string // names the tier: its root, or Options.RemoteTier by its String or type
	tier   tier.Disk

	// root is the directory of the tier, nil for a RemoteTier that is not a directory. A tool may wait
	// longer for a slow mount than a server, so root is not isolated; operations on a mount that
	// hangs end with RootOptions.Timeout.
	root *dir.Tier

	pages      *names.Pages // of the store
	pageTokens int
	now        func() time.Time

	files    *counted.Tier // its files
	book     *ledger.Book  // this process's part of the tier's ledger
	counts   levelCounters
	failures *atomic.Uint64  // of both tiers
	down     func() bool     // the tier is known to be down; nil for never
	checked  *checked.Pages  // reads its files
	room     *room.Collector // makes room for them
	branches *branch.Sweep   // removes branches of pages that have gone

	asking         steady.Guard    // hangs while Options.Obsolete does
	hitClock       work.Once       // records hits
	tombstones     tombstones.List // pages that left the tier
	tombstoneClock work.Once       // records these
	tombstonesSeen room.Moment     // when the tier's list was read for them
	tombstoneRead  struct {        // the list of a remote tier, as it was read last
		sync.Mutex
		content []byte
		at      time.Time
	}
	behind     *work.Queue   // work behind look-ups
	collecting *work.Queue   // collections; demotions are the local level's
	recording  *work.Queue   // records of hits and tombstones
	counting   []*work.Queue // those of which a job makes the first count
}

// openLevel completes a level, all but its collector. perDay is Options.WritePerDay of its tier.
func (s *Store) openLevel(lv *level, perDay int64, files counted.Options) {
	if lv.where = lv.config.Root; lv.where == "" {
		lv.where = fmt.Sprintf("%T", s.opt.RemoteTier)
		if named, ok := s.opt.RemoteTier.(fmt.Stringer); ok {
			lv.where = named.String()
		}
	}
	lv.pages, lv.pageTokens, lv.now = s.pages, s.opt.PageTokens, func() time.Time { return s.now() }
	lv.behind, lv.failures, lv.collecting = s.promoting, &s.counts.tierErrors, work.NewQueue()
	if lv.recording == nil {
		lv.recording = lv.collecting
		lv.counting = []*work.Queue{lv.collecting}
	} else {
		lv.counting = []*work.Queue{lv.recording, lv.collecting}
	}
	lv.book = ledger.NewBook(lv.tier, lv.config.BudgetBytes, perDay, lv.now)
	lv.branches = branch.NewSweep(lv.tier, lv.noteTierError)
	files.Far, files.Pages, files.ReadAheadBytes, files.LatestPages = lv.far, lv.pages, s.opt.ReadAheadBytes, s.opt.LatestPages
	files.Appeared = func(name pagefile.Name) { lv.checked.Bad.Forget(name) }
	files.Removed = func(name pagefile.Name) {
		lv.checked.Copies.Forget(name)
		lv.branches.Removed(name)
	}
	lv.files = counted.New(lv.tier, lv.book, files)
	lv.checked = checked.New(lv.tier, checked.Options{
		Name: lv.name, Far: lv.far, Log: s.log, Now: lv.now, Failed: lv.noteTierError, Quarantine: lv.files.Quarantine,
		Gone: func(info tier.Info) {
			lv.counts.quarantined.Add(1)
			lv.noteGone(info, TombstoneDamaged)
		},
		Damaged: &s.counts.damaged, Mismatched: &s.counts.mismatched, Unreadable: lv.failures,
	})
}

// answers reports whether the tier is not known to be down. The local tier is never down.
func (lv *level) answers() bool { return lv.down == nil || !lv.down() }

// roomOptions are those of the level's collector. moved counts the pages that move down.
func (lv *level) roomOptions(evict Eviction, chains *recency.Chains, moved *atomic.Uint64) room.Options {
	gone := lv.tombstonesByUse
	if evict == EvictLRU {
		gone = nil
	}
	return room.Options{
		Gone:       gone,
		Obsolete:   func(context.Context) map[pagefile.Key]bool { return nil },
		CountEvery: room.CountEvery, Chains: chains, Now: lv.now, Failed: lv.noteTierError, Swept: lv.branches.Run,
		Left: func(info tier.Info, down bool) {
			if down {
				moved.Add(1)
				return
			}
			lv.counts.evicted.Add(1)
			lv.noteGone(info, TombstoneRoom)
		},
	}
}

// obsolete returns the fingerprints in the tier that picks picks within a second, for which a Put may wait, and
// those of lossy pages that stand for theirs: exact and lossy pages may continue each other.
func (lv *level) obsolete(ctx context.Context, picks func(FingerprintUsage) bool) map[pagefile.Key]bool {
	known, _, _ := lv.tier.Survey(ctx) // the listing that follows tells its error
	uses := lv.identify(ctx, &counted.Tally{Known: known})
	all, _ := steady.Do(ctx, &lv.asking, steady.Wait{Most: time.Second}, func() (map[pagefile.Key]bool, error) {
		all := make(map[pagefile.Key]bool)
		for _, use := range uses {
			if picks(use) {
				all[use.Fingerprint], all[pagefile.ColdFingerprint(use.Fingerprint)] = true, true
			}
		}
		return all, nil
	}, nil)
	return all
}

// levels are the tiers of a store in the order of look-ups: the local one, and the remote one if there
// is one.
type levels []*level

// from returns the tiers, beginning with that of a name.
func (l levels) from(name string) levels {
	if name == tier.Remote && len(l) > 1 {
		return levels{l[1], l[0]}
	}
	return l
}

// named returns the tier of a name, Local or Remote.
func (l levels) named(name string) *level { return l.from(name)[0] }

// reachable reports whether look-ups can find a page at a place once it is stored.
func (l levels) reachable(ctx context.Context, at recency.Place) bool {
	return at.Start == 0 || slices.ContainsFunc(l, func(lv *level) bool {
		_, err := lv.pages.Stat(ctx, lv.tier, at.Parent)
		return err == nil
	})
}

// queues returns the queues of background work, the first ones and those of collections. A job may
// submit jobs to the queues after its own, and to none before.
func (l levels) queues(first ...*work.Queue) []*work.Queue {
	queues := slices.Clone(first)
	for _, lv := range l {
		queues = append(queues, lv.collecting)
	}
	return queues
}
