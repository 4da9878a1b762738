package diskstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// Reclaimed counts what Reclaim removed, over both tiers.
type Reclaimed struct {
	Fingerprints int
	Pages        int // full pages and tails
	Bytes        int64
}

// Reclaim removes all pages of the fingerprints that unwanted picks from what
// Scan or Survey has found. This store's own is not among them. A process that
// still uses one of them computes its pages again.
//
// It returns what it removed together with the first error of the local tier; a
// remote tier that cannot be reached is no error.
func (s *Store) Reclaim(ctx context.Context, found Usage, unwanted func(FingerprintUsage) bool) (Reclaimed, error) {
	ctx, leave, err := s.life.enter(ctx)
	if err != nil {
		return Reclaimed{}, err
	}
	defer leave()
	var r Reclaimed
	var errs []error
	for _, id := range s.tiers(tier.Local) {
		use := found.Local
		if id == tierRemote {
			use = found.Remote
		}
		err := s.reclaimTier(ctx, id, use.Others, unwanted, &r)
		if err != nil && id == tierLocal {
			errs = append(errs, fmt.Errorf("reclaim pages in %s: %w", s.config(id).Root, err))
		}
	}
	return r, errors.Join(errs...)
}

func (s *Store) reclaimTier(ctx context.Context, id tierID, uses []FingerprintUsage, unwanted func(FingerprintUsage) bool, r *Reclaimed) error {
	if len(uses) == 0 {
		return nil
	}
	now, err := s.ageClock(ctx, id)
	if err != nil {
		return err
	}
	for _, use := range uses {
		if use.Unused = now.Sub(use.LastUsed); !unwanted(use) {
			continue
		}
		all := purge{fingerprint: use.Fingerprint, removed: func(info tier.Info) {
			r.Pages++
			r.Bytes += info.Physical
		}}
		if _, err := s.purge(ctx, id, all); err != nil {
			return err
		}
		r.Fingerprints++
	}
	return nil
}

// purge says which files of one fingerprint go, whatever the budget.
type purge struct {
	fingerprint pagefile.Key
	before      time.Time // only files last used earlier; zero for all
	dry         bool      // none goes
	removed     func(tier.Info)
}

// purge deletes files from a tier, and the fingerprint's directory when none is
// left. It reports whether none is.
func (s *Store) purge(ctx context.Context, id tierID, p purge) (all bool, err error) {
	shards, err := s.tier(id).Shards(ctx)
	if err != nil {
		return false, err
	}
	gone := s.newRemoval(id)
	defer func() { gone.record(ctx) }()
	all = true
	for _, shard := range shards {
		if shard.Fingerprint != p.fingerprint {
			continue
		}
		infos, err := s.tier(id).ListShard(ctx, shard)
		if err != nil {
			return false, err
		}
		for _, info := range infos {
			if err := ctx.Err(); err != nil {
				return false, err
			}
			if !p.before.IsZero() && !info.Used.Before(p.before) {
				all = false
				continue
			}
			if !p.dry {
				removed, err := s.drop(ctx, id, info)
				if errors.Is(err, tier.ErrReplaced) { // or another machine has touched it, which is seen now
					removed, err = s.drop(ctx, id, info)
				}
				if err != nil {
					return false, fmt.Errorf("remove page %v: %w", info.Key, err)
				}
				if removed.Bytes == 0 {
					continue // by somebody else
				}
				gone.add(removed)
			}
			p.removed(info)
		}
	}
	if p.dry || !all {
		return all, nil
	}
	if err := s.tier(id).DropFingerprint(ctx, p.fingerprint); err != nil {
		return false, err
	}
	return true, s.books[id].Forget(ctx, p.fingerprint)
}
