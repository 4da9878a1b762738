package diskstore

import (
	"context"
	"errors"
	"fmt"
)

// Keys of Options.Identity that ReclaimStale compares. A fingerprint whose
// identity lacks one of them is never stale.
const (
	IdentityWeights   = "weights"   // digest of the model's weights
	IdentityNamespace = "namespace" // tenant
	IdentityEngine    = "engine"    // digest of what computes the rows
)

// Reclaimed counts what ReclaimStale removed, over both tiers.
type Reclaimed struct {
	Fingerprints int
	Pages        int // full pages and tails
	Bytes        int64
}

// ReclaimStale removes the pages of fingerprints that nothing will ask for
// again: those of the same weights and namespace as this store's, made by
// another engine. keep may save one by its identity; nil saves none. A process
// that still uses such a fingerprint computes its pages again.
//
// It returns what it removed together with the first error of each tier; an
// unreachable remote tier is no error.
func (s *Store) ReclaimStale(ctx context.Context, keep func(identity map[string]string) bool) (Reclaimed, error) {
	ctx, leave, err := s.life.enter(ctx)
	if err != nil {
		return Reclaimed{}, err
	}
	defer leave()
	var r Reclaimed
	var errs []error
	for _, id := range s.tiers(TierLocal) {
		err := s.reclaimTier(ctx, id, keep, &r)
		if err != nil && id == tierLocal {
			errs = append(errs, fmt.Errorf("reclaim stale pages in %s: %w", s.config(id).Root, err))
		}
	}
	return r, errors.Join(errs...)
}

func (s *Store) reclaimTier(ctx context.Context, id tierID, keep func(map[string]string) bool, r *Reclaimed) error {
	fingerprints, err := s.tier(id).Fingerprints(ctx)
	if err != nil {
		return err
	}
	stale := make(map[Key]bool)
	for _, fp := range fingerprints {
		m, err := readManifest(ctx, s.tier(id), fp)
		if err == nil && fp != s.opt.Fingerprint && s.isStale(m.Identity) && (keep == nil || !keep(m.Identity)) {
			stale[fp] = true
		}
	}
	if len(stale) == 0 {
		return nil
	}
	infos, err := s.count(ctx, id)
	if err != nil {
		return err
	}
	for _, info := range infos {
		if !stale[info.Fingerprint] {
			continue
		}
		if !s.drop(ctx, id, info) {
			return fmt.Errorf("remove page %v: not removed", info.Key)
		}
		r.Pages++
		r.Bytes += info.Physical
	}
	for fp := range stale {
		if err := s.tier(id).DropFingerprint(ctx, fp); err != nil {
			return err
		}
		r.Fingerprints++
	}
	return nil
}

// isStale reports whether pages of the given identity are superseded by this
// store's.
func (s *Store) isStale(identity map[string]string) bool {
	own := s.opt.Identity
	for _, key := range []string{IdentityWeights, IdentityNamespace, IdentityEngine} {
		_, have := identity[key]
		_, want := own[key]
		if !have || !want {
			return false
		}
	}
	return identity[IdentityWeights] == own[IdentityWeights] &&
		identity[IdentityNamespace] == own[IdentityNamespace] &&
		identity[IdentityEngine] != own[IdentityEngine]
}
