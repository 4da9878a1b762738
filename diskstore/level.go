package diskstore

import (
	"context"
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
)

// level is one tier of a store: the local one, or the remote one below it.
type level struct {
	levelOptions
	tier tier.Disk

	files    *counted.Tier // its files
	book     *ledger.Book  // this process's part of the tier's ledger
	counts   levelCounters
	checked  *checked.Pages  // reads them
	room     *room.Collector // makes room for them
	branches *branch.Sweep   // removes branches of pages that have gone
	adopted  sync.Map        // fingerprints whose old branches are being adopted or were, with the time of the last failure

	hitClock       work.Once       // records hits
	tombstones     tombstones.List // pages that left the tier
	tombstoneClock work.Once       // records these
	tombstoneRead  struct {        // the list of a remote tier, as it was read last
		sync.Mutex
		content []byte
		at      time.Time
	}
	collecting *work.Queue   // collections; demotions are the local level's
	counting   []*work.Queue // those of which a job makes the first count
}

// levelOptions are the place of a level in its store.
type levelOptions struct {
	name   string // tier.Local or tier.Remote
	far    bool   // the remote tier
	config TierConfig
	perDay int64  // Options.WritePerDay, of the local tier
	where  string // names the tier in errors: its root or, without a root, the type of Options.RemoteTier

	// root is the directory of the tier, nil for a RemoteTier that is not a directory. A tool may wait
	// longer for a slow mount than a server, so root is not isolated; operations on a mount that
	// hangs end with RootOptions.Timeout.
	root *dir.Tier

	pages      *names.Pages // of the store
	pageTokens int
	now        func() time.Time

	behind    *work.Queue // of work behind look-ups
	recording *work.Queue // of hits and tombstones; nil for the level's own collecting

	failures *atomic.Uint64 // of both tiers
	down     func() bool    // the tier is known to be down; nil for never
}

// newLevel returns the level of a tier, without its collector. It adds its own part to files and checks.
func newLevel(t tier.Disk, opt levelOptions, files counted.Options, checks checked.Options) *level {
	lv := &level{
		levelOptions: opt, tier: t,
		book:       ledger.NewBook(t, opt.config.BudgetBytes, opt.perDay, opt.now),
		collecting: work.NewQueue(),
	}
	lv.branches = branch.NewSweep(t, lv.noteTierError)
	if lv.recording == nil {
		lv.recording = lv.collecting
		lv.counting = []*work.Queue{lv.collecting}
	} else {
		lv.counting = []*work.Queue{lv.recording, lv.collecting}
	}
	files.Far, files.Pages = opt.far, opt.pages
	files.Appeared = func(name pagefile.Name) { lv.checked.Bad.Forget(name) }
	files.Removed = func(name pagefile.Name) {
		lv.checked.Copies.Forget(name)
		lv.branches.Removed(name)
	}
	lv.files = counted.New(t, lv.book, files)
	checks.Name, checks.Far, checks.Now, checks.Failed = opt.name, opt.far, opt.now, lv.noteTierError
	checks.Quarantine = lv.files.Quarantine
	checks.Gone = func(name pagefile.Name) {
		lv.counts.quarantined.Add(1)
		lv.noteGone(name, TombstoneDamaged)
	}
	checks.Unreadable = opt.failures
	lv.checked = checked.New(t, checks)
	return lv
}

// answers reports whether the tier is not known to be down. The local tier is never down.
func (lv *level) answers() bool { return lv.down == nil || !lv.down() }

// roomOptions are those of the level's collector. moved counts the pages that move down.
func (lv *level) roomOptions(chains *recency.Chains, moved *atomic.Uint64) room.Options {
	return room.Options{
		CountEvery: room.CountEvery, Chains: chains, Now: lv.now, Failed: lv.noteTierError, Swept: lv.branches.Run,
		Left: func(name pagefile.Name, down bool) {
			if down {
				moved.Add(1)
				return
			}
			lv.counts.evicted.Add(1)
			lv.noteGone(name, TombstoneRoom)
		},
	}
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
func (l levels) named(name string) *level {
	if name == tier.Remote {
		return l[1]
	}
	return l[0]
}

// reachable reports whether look-ups can find a page at a place once it is stored.
func (l levels) reachable(ctx context.Context, at recency.Place) bool {
	if at.Start == 0 {
		return true
	}
	for _, lv := range l {
		if _, err := lv.pages.Stat(ctx, lv.tier, at.Parent); err == nil {
			return true
		}
	}
	return false
}

// queues returns the queues of background work, the first one and those of collections. A job may
// submit jobs to the queues after its own, and to none before.
func (l levels) queues(first *work.Queue) []*work.Queue {
	queues := []*work.Queue{first}
	for _, lv := range l {
		queues = append(queues, lv.collecting)
	}
	return queues
}
