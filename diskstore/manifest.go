package diskstore

import (
	"context"
	"errors"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// ensureManifest writes this store's manifest if the tier has no readable one. ensureManifest
// returns pagefile.ErrMismatch when the tier's manifest has another page size, which the
// fingerprint should have distinguished.
func (s *Store) ensureManifest(ctx context.Context, t tier.Tier) error {
	m, err := tier.ReadManifest(ctx, t, s.opt.Fingerprint)
	switch {
	case err == nil && m.PageTokens != s.opt.PageTokens:
		return pagefile.Mismatch("fingerprint %v has pages of %d tokens, want %d", s.opt.Fingerprint, m.PageTokens, s.opt.PageTokens)
	case err == nil:
		return nil
	case !errors.Is(err, tier.ErrNotFound) && !errors.Is(err, pagefile.ErrDamaged):
		return err
	}
	return tier.WriteManifest(ctx, t, s.opt.Fingerprint, &tier.Manifest{
		Schema: pagefile.Schema, Fingerprint: s.opt.Fingerprint.String(), PageTokens: s.opt.PageTokens, Identity: s.opt.Identity,
	})
}

// describe writes the manifest again if this store has stored pages and somebody has removed the
// manifest, as kvtier rm does beside a server. After a failure the pages are good, and nothing
// says which model they are of.
func (s *Store) describe(ctx context.Context) {
	if s.counts.puts.Load() == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, hitsPatience)
	defer cancel()
	_ = s.ensureManifest(ctx, s.disk)
}

// copyManifest copies the manifest of a fingerprint to the remote tier, so that the remote
// tier describes pages that move there.
func (s *Store) copyManifest(ctx context.Context, fingerprint pagefile.Key) error {
	_, err := s.guard.Stat(ctx, pagefile.Name{Fingerprint: fingerprint, Class: pagefile.ClassManifest})
	if !errors.Is(err, tier.ErrNotFound) {
		return err
	}
	m, err := tier.ReadManifest(ctx, s.disk, fingerprint)
	if errors.Is(err, tier.ErrNotFound) || errors.Is(err, pagefile.ErrDamaged) {
		return nil // pages are good without a manifest
	}
	if err != nil {
		return err
	}
	return tier.WriteManifest(ctx, s.guard, fingerprint, m)
}
