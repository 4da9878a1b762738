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
func (s *Store) count(ctx context.Context, id tierID, each func(tier.Info)) (*tally, error) {
	select {
	case s.counting[id] <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-s.counting[id] }()
	t, b := s.tier(id), s.books[id]
	began, berr := b.BeginCount(ctx)
	aside, err := t.Aside(ctx)
	if err != nil {
		return nil, err
	}
	began.Living, began.Held = aside.Living, aside.Held
	shards, err := s.beginListing(ctx, id)
	if err != nil {
		return nil, err
	}
	defer s.usage[id].abandon()
	recent := s.first[id].begin(s.opt.Fingerprint, s.opt.ReadAheadBytes)
	found := &tally{fingerprints: make(map[pagefile.Key]*FingerprintUsage)}
	for _, shard := range shards {
		infos, err := s.countShard(ctx, id, shard)
		if err != nil {
			return nil, err
		}
		for _, info := range infos {
			found.add(info)
			recent.add(info)
			if each != nil {
				each(info)
			}
			s.watch.list(id)
		}
	}
	if found.aside, err = t.Aside(ctx); err != nil {
		return nil, err
	}
	// From here on what this process adds is not in the count.
	s.commit[id].Lock()
	found.bytes = s.usage[id].end(time.Since(began.Began))
	began.Listed = b.Added()
	s.commit[id].Unlock()
	if berr == nil {
		berr = b.EndCount(ctx, began, found.total())
	} else {
		_ = b.Refresh(ctx) // another machine may have counted, where this one may not write
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	found.booked = berr == nil
	s.first[id].end(found, recent)
	return found, nil
}

// beginListing returns the shards of a tier that are to be counted. A file in one
// that is made later is added as it appears.
func (s *Store) beginListing(ctx context.Context, id tierID) ([]tier.Shard, error) {
	s.usage[id].prepare()
	shards, err := s.tier(id).Shards(ctx)
	if err != nil {
		s.usage[id].abandon()
		return nil, err
	}
	s.usage[id].begin(shards)
	return shards, nil
}

// countShard lists one shard. No file of the tier appears or goes through this
// store meanwhile, so that what is counted is exact.
func (s *Store) countShard(ctx context.Context, id tierID, shard tier.Shard) ([]tier.Info, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.commit[id].Lock()
	defer s.commit[id].Unlock()
	infos, err := s.tier(id).ListShard(ctx, shard)
	if err == nil {
		s.usage[id].listed(shard, infos)
	}
	return infos, err
}

// list calls each for every file of a tier without counting.
func (s *Store) list(ctx context.Context, id tierID, each func(tier.Info)) error {
	shards, err := s.tier(id).Shards(ctx)
	if err != nil {
		return err
	}
	for _, shard := range shards {
		if err := ctx.Err(); err != nil {
			return err
		}
		infos, err := s.tier(id).ListShard(ctx, shard)
		if err != nil {
			return err
		}
		for _, info := range infos {
			each(info)
			s.watch.list(id)
		}
	}
	return nil
}

// watcher is told what happens to files, for a report. Nil functions are not
// called.
type watcher struct {
	listed  func(tierID)
	removed func(id tierID, info tier.Info, demoted bool)
}

func (w watcher) list(id tierID) {
	if w.listed != nil {
		w.listed(id)
	}
}

func (w watcher) evict(id tierID, info tier.Info, demoted bool) {
	if w.removed != nil {
		w.removed(id, info, demoted)
	}
}
