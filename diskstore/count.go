package diskstore

import (
	"context"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// A tier is counted again when its last count is older than countEvery, and
	// than countPause times what that count took: counting a million files must
	// not be what a server spends its time on.
	countEvery = time.Minute
	countPause = 100

	// countAgain is countEvery where nothing can be claimed without a count.
	countAgain = time.Second
)

// tally is what a count found in a tier.
type tally struct {
	fingerprints map[pagefile.Key]*FingerprintUsage // without their identities
	bytes        int64                              // physical, of pages and tails
	aside        tier.Aside

	// booked reports that the ledger has taken the count over; it has not where
	// the tier cannot be written.
	booked bool
}

// total is everything that was found and that no process has claimed, in bytes.
func (t *tally) total() int64 { return t.bytes + t.aside.OrphanBytes + t.aside.QuarantineBytes }

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

// count lists a tier, shard by shard, takes over what it holds, and calls each,
// which may be nil, for every file.
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
	shards, err := lv.beginListing(ctx)
	if err != nil {
		return nil, err
	}
	defer lv.use.abandon()
	recent := lv.first.begin(lv.s.opt.Fingerprint, lv.s.opt.ReadAheadBytes)
	found := &tally{fingerprints: make(map[pagefile.Key]*FingerprintUsage)}
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
	// From here on what this process adds is not in the count.
	lv.commit.Lock()
	found.bytes = lv.use.end(time.Since(began.Began))
	began.Listed = b.Added()
	lv.commit.Unlock()
	if berr == nil {
		berr = b.EndCount(ctx, began, found.total())
	} else {
		_ = b.Refresh(ctx) // another machine may have counted, where this one may not write
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	found.booked = berr == nil
	lv.first.end(found, recent)
	return found, nil
}

// beginListing returns the shards of a tier that are to be counted. A file in one
// that is made later is added as it appears.
func (lv *level) beginListing(ctx context.Context) ([]tier.Shard, error) {
	lv.use.prepare()
	shards, err := lv.tier.Shards(ctx)
	if err != nil {
		lv.use.abandon()
		return nil, err
	}
	lv.use.begin(shards)
	return shards, nil
}

// countShard lists one shard. No file of the tier appears or goes through this
// store meanwhile, so that what is counted is exact.
func (lv *level) countShard(ctx context.Context, shard tier.Shard) ([]tier.Info, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	lv.commit.Lock()
	defer lv.commit.Unlock()
	infos, err := lv.tier.ListShard(ctx, shard)
	if err == nil {
		lv.use.listed(shard, infos)
	}
	return infos, err
}

// list calls each for every file of a tier without counting.
func (lv *level) list(ctx context.Context, each func(tier.Info)) error {
	shards, err := lv.tier.Shards(ctx)
	if err != nil {
		return err
	}
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

// watcher is told what happens to files, for a report. Nil functions are not
// called.
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
