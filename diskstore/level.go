package diskstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/checked"
	"github.com/kvtier/kvtier/diskstore/internal/counted"
	"github.com/kvtier/kvtier/diskstore/internal/graves"
	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// level is one tier of a store: the local one, or the remote one below it.
type level struct {
	s      *Store
	name   string // tier.Local or tier.Remote
	tier   counted.Surveyed
	config TierConfig

	files    *counted.Tier // its files
	book     *ledger.Book  // this process's part of the tier's ledger
	counts   levelCounters
	checked  *checked.Pages  // reads them
	room     *room.Collector // makes room for them
	branches *branchSweep
	adopted  sync.Map // fingerprints whose old branches are being adopted or were, with the time of the last failure

	hitClock   work.Once   // records hits
	graves     graves.List // pages that left the tier
	graveClock work.Once   // records these
	graveRead  struct {    // the list of a remote tier, as it was read last
		sync.Mutex
		content []byte
		at      time.Time
	}
	collecting *work.Queue   // collections; demotions are the local level's
	counting   []*work.Queue // those of which a job makes the first count
}

// where names the tier in errors: its root or, without a root, the type of
// Options.RemoteTier.
func (lv *level) where() string {
	if lv.config.Root == "" {
		return fmt.Sprintf("%T", lv.s.opt.RemoteTier)
	}
	return lv.config.Root
}

// newLevel returns the local level, whose tier is a directory, or the remote one.
func newLevel(s *Store, name string, t counted.Surveyed, config TierConfig, perDay int64) *level {
	now := func() time.Time { return s.now() }
	lv := &level{
		s: s, name: name, tier: t, config: config,
		book: ledger.NewBook(t, config.BudgetBytes, perDay, now), branches: newBranchSweep(),
		collecting: work.NewQueue(),
	}
	opt := counted.Options{
		Far: name == tier.Remote, LazyNames: s.opt.LazyNames,
		ReadAheadBytes: s.opt.ReadAheadBytes, LatestPages: s.opt.LatestPages, Pages: s.pages,
		Appeared: func(name pagefile.Name) { lv.checked.Verdicts.Replaced(name) },
		Removed: func(name pagefile.Name) {
			lv.checked.Copies.Forget(name)
			lv.branches.removed(name)
		},
	}
	if name == tier.Local {
		opt.Aside = s.disk
		// Only now: a removal that takes the manifest looks for pages after that.
		opt.Visible = func(ctx context.Context, name pagefile.Name) { _ = s.manifests.describe(ctx, t, name.Fingerprint) }
	}
	lv.files = counted.New(t, lv.book, opt)
	lv.checked = checked.New(t, checked.Options{
		Name: name, Far: name == tier.Remote, Log: s.log, Now: now,
		Quarantine: lv.files.Quarantine, Failed: lv.noteTierError,
		Gone: func(name pagefile.Name) {
			lv.counts.quarantined.Add(1)
			lv.bury(name, GraveDamaged)
		},
		Damaged: &s.counts.damaged, Mismatched: &s.counts.mismatched, Unreadable: &s.counts.tierErrors,
	})
	return lv
}
