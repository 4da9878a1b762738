package diskstore

import (
	"context"
	"errors"
	"fmt"
)

// Reclaimed counts what Reclaim removed, over both tiers.
type Reclaimed struct {
	Fingerprints int
	Pages        int // full pages and tails
	Bytes        int64
}

// Reclaim removes all pages of the fingerprints that unwanted picks from what
// the tiers hold. It is never asked about this store's own. A process that
// still uses one of them computes its pages again.
//
// It returns what it removed together with the first error of the local tier; a
// remote tier that cannot be reached is no error.
func (s *Store) Reclaim(ctx context.Context, unwanted func(FingerprintUsage) bool) (Reclaimed, error) {
	ctx, leave, err := s.life.enter(ctx)
	if err != nil {
		return Reclaimed{}, err
	}
	defer leave()
	var r Reclaimed
	var errs []error
	for _, id := range s.tiers(TierLocal) {
		err := s.reclaimTier(ctx, id, unwanted, &r)
		if err != nil && id == tierLocal {
			errs = append(errs, fmt.Errorf("reclaim pages in %s: %w", s.config(id).Root, err))
		}
	}
	return r, errors.Join(errs...)
}

func (s *Store) reclaimTier(ctx context.Context, id tierID, unwanted func(FingerprintUsage) bool, r *Reclaimed) error {
	infos, uses, err := s.usageByFingerprint(ctx, id)
	if err != nil {
		return err
	}
	picked := make(map[Key]bool)
	for fp, use := range uses {
		if fp != s.opt.Fingerprint && unwanted(*use) {
			picked[fp] = true
		}
	}
	for _, info := range infos {
		if !picked[info.Fingerprint] {
			continue
		}
		if !s.drop(ctx, id, info) {
			return fmt.Errorf("remove page %v: not removed", info.Key)
		}
		r.Pages++
		r.Bytes += info.Physical
	}
	for fp := range picked {
		if err := s.tier(id).DropFingerprint(ctx, fp); err != nil {
			return err
		}
		r.Fingerprints++
	}
	return nil
}
