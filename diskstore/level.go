package diskstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/graves"
	"github.com/kvtier/kvtier/diskstore/internal/work"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// level is one tier of a store: the local one, or the remote one below it.
type level struct {
	s      *Store
	name   string // tier.Local or tier.Remote
	tier   surveyed
	config TierConfig

	book     *ledger.Book // this process's part of the tier's ledger
	use      tierUse      // its files, as far as they were counted
	counts   levelCounters
	first    *firstCount
	verdicts *verdicts
	copies   *copies // of the remote tier
	branches *branchSweep
	adopted  sync.Map // fingerprints whose old branches are being adopted or were, with the time of the last failure
	futile   futile   // deleting pages for space on the filesystem
	trimmed  moment   // time of the last trim that evicted all but young files, and needed more

	hitClock   work.Once   // records hits
	graves     graves.List // pages that left the tier
	graveClock work.Once   // records these
	graveRead  struct {    // the list of a remote tier, as it was read last
		sync.Mutex
		content []byte
		at      time.Time
	}
	collecting *work.Queue // collections; demotions are the local level's

	// collector holds a token while one goroutine of this process collects; Tier.Lock does the
	// same between processes. counting is the same for counts.
	collector, counting chan struct{}

	// commit is held shared while a file appears or is removed and the numbers change, and
	// exclusively while the result of a listing is counted; in the local tier also during the
	// listing. No file is synced meanwhile: a device that takes long, or hangs, holds up the
	// upload that waits for it and nothing else.
	commit sync.RWMutex
}

// surveyed is a tier that lists its root once for both results.
type surveyed interface {
	tier.Tier
	Survey(ctx context.Context) (fingerprints []pagefile.Key, shards []tier.Shard, err error)
}

// where names the tier in errors: its root or, without a root, the type of
// Options.RemoteTier.
func (lv *level) where() string {
	if lv.config.Root == "" {
		return fmt.Sprintf("%T", lv.s.opt.RemoteTier)
	}
	return lv.config.Root
}

func newLevel(s *Store, name string, t surveyed, config TierConfig, perDay int64) *level {
	now := func() time.Time { return s.now() }
	return &level{
		s: s, name: name, tier: t, config: config,
		book: ledger.NewBook(t, config.BudgetBytes, perDay, now), first: newFirstCount(), branches: newBranchSweep(), verdicts: newVerdicts(name, now), copies: newCopies(now),
		collecting: work.NewQueue(), collector: make(chan struct{}, 1), counting: make(chan struct{}, 1),
	}
}
