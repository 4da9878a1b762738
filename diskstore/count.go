package diskstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// A tier is counted again when its last count is older than countEvery and than countPause
	// times the duration of that count: a server with a million files must not spend its time
	// counting them.
	countEvery = time.Minute
	countPause = 100

	// countAgain replaces countEvery where claims are impossible without a count.
	countAgain = time.Second

	// listAgain is the number of times that a count lists one shard of the remote tier.
	listAgain = 5
)

// tally is the result of a count of a tier.
type tally struct {
	known        []pagefile.Key                     // all fingerprints, also those without files
	fingerprints map[pagefile.Key]*FingerprintUsage // without their identities
	bytes        int64                              // physical, of pages and tails
	replaced     int64                              // physical, of files replaced by others that are not durable yet
	aside        tier.Aside

	// booked reports that the ledger has the result of the count; the ledger of a read-only
	// tier has not.
	booked bool
}

func newTally(known []pagefile.Key) *tally {
	return &tally{known: known, fingerprints: make(map[pagefile.Key]*FingerprintUsage)}
}

// total is the number of bytes found that no process has claimed.
func (t *tally) total() int64 {
	return t.bytes + t.replaced + t.aside.OrphanBytes + t.aside.QuarantineBytes
}

// add counts one file.
func (t *tally) add(info tier.Info) {
	use := t.fingerprints[info.Fingerprint]
	if use == nil {
		use = &FingerprintUsage{Fingerprint: info.Fingerprint}
		t.fingerprints[info.Fingerprint] = use
	}
	if info.Class == pagefile.ClassTail {
		use.Tails++
	} else {
		use.Pages++
	}
	use.Bytes += info.Physical
	t.bytes += info.Physical
	if info.Used.After(use.LastUsed) {
		use.LastUsed = info.Used
	}
}

// count lists a tier, shard by shard, replaces the tier's numbers, and calls each, which may
// be nil, for every file.
func (lv *level) count(ctx context.Context, each func(tier.Info)) (*tally, error) {
	select {
	case lv.counting <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-lv.counting }()
	t, b := lv.tier, lv.book
	began, berr := b.BeginCount(ctx)
	aside, err := t.Aside(ctx)
	if err != nil {
		return nil, err
	}
	began.Living, began.Held = aside.Living, aside.Held
	fingerprints, shards, err := lv.beginListing(ctx)
	if err != nil {
		return nil, err
	}
	defer lv.use.abandon()
	recent := lv.first.begin(lv.s.opt.ReadAheadBytes, lv.s.opt.LatestPages, lv.s.pages.Fingerprints())
	found := newTally(fingerprints)
	for _, shard := range shards {
		infos, err := lv.countShard(ctx, shard)
		if err != nil {
			return nil, err
		}
		for _, info := range infos {
			found.add(info)
			recent.add(info)
			if each != nil {
				each(info)
			}
			lv.s.watch.list(lv)
		}
	}
	if found.aside, err = t.Aside(ctx); err != nil {
		return nil, err
	}
	// Bytes that this process adds from here on are not in the count.
	lv.commit.Lock()
	found.bytes, found.replaced = lv.use.end(time.Since(began.Began))
	began.Listed = b.Added()
	lv.commit.Unlock()
	if berr == nil {
		berr = b.EndCount(ctx, began, found.total())
	} else {
		_ = b.Refresh(ctx) // another machine may have counted, if this one may not write
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	found.booked = berr == nil
	lv.first.end(found, recent)
	return found, nil
}

// beginListing returns the fingerprints of a tier and the shards to count. A file in a shard
// made later is counted when the file appears.
func (lv *level) beginListing(ctx context.Context) ([]pagefile.Key, []tier.Shard, error) {
	lv.use.prepare()
	fingerprints, shards, err := lv.tier.Survey(ctx)
	if err != nil {
		lv.use.abandon()
		return nil, nil, err
	}
	lv.use.begin(shards)
	return fingerprints, shards, nil
}

// countShard lists one shard. This store adds and removes no file of the tier meanwhile, so
// that the count is exact.
func (lv *level) countShard(ctx context.Context, shard tier.Shard) ([]tier.Info, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if lv == lv.s.remote {
		return lv.countFarShard(ctx, shard)
	}
	lv.commit.Lock()
	defer lv.commit.Unlock()
	infos, err := lv.tier.ListShard(ctx, shard)
	if err == nil {
		lv.use.listed(shard, infos)
	}
	return infos, err
}

// errChanging reports a shard that changed during each of its listings.
var errChanging = errors.New("diskstore: files are added or removed as fast as they are listed")

// countFarShard does as countShard for a tier whose listing may take long or hang: this store
// goes on adding and removing files, and a shard that changed meanwhile is listed again.
func (lv *level) countFarShard(ctx context.Context, shard tier.Shard) ([]tier.Info, error) {
	for range listAgain {
		lv.use.look(shard)
		infos, err := lv.tier.ListShard(ctx, shard)
		if err != nil {
			return infos, err
		}
		lv.commit.Lock() // a file that appears now is counted when it has appeared
		same := lv.use.same(shard)
		if same {
			lv.use.listed(shard, infos)
		}
		lv.commit.Unlock()
		if same {
			return infos, nil
		}
	}
	return nil, fmt.Errorf("list shard %02x of %v: %w", shard.First, shard.Fingerprint, errChanging)
}

// list calls each for every file of a tier without counting.
func (lv *level) list(ctx context.Context, each func(tier.Info)) error {
	shards, err := lv.tier.Shards(ctx)
	if err != nil {
		return err
	}
	return lv.listShards(ctx, shards, each)
}

// listShards does as list for some shards.
func (lv *level) listShards(ctx context.Context, shards []tier.Shard, each func(tier.Info)) error {
	for _, shard := range shards {
		if err := ctx.Err(); err != nil {
			return err
		}
		infos, err := lv.tier.ListShard(ctx, shard)
		if err != nil {
			return err
		}
		for _, info := range infos {
			each(info)
			lv.s.watch.list(lv)
		}
	}
	return nil
}

// watcher receives the files that are listed and removed, for a report. Functions may be nil.
type watcher struct {
	listed  func(*level)
	removed func(lv *level, info tier.Info, demoted bool)
}

func (w watcher) list(lv *level) {
	if w.listed != nil {
		w.listed(lv)
	}
}

func (w watcher) evict(lv *level, info tier.Info, demoted bool) {
	if w.removed != nil {
		w.removed(lv, info, demoted)
	}
}
