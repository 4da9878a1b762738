package diskstore

import (
	"context"
	"errors"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// ensureManifest writes this store's manifest where the tier has none that can
// be read. It returns ErrMismatch when the one there is for another page size,
// which the fingerprint should have told apart.
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

// copyManifest makes the remote tier able to say what the pages of a
// fingerprint are that move there.
func (s *Store) copyManifest(ctx context.Context, fingerprint pagefile.Key) error {
	_, err := s.guard.Stat(ctx, pagefile.Name{Fingerprint: fingerprint, Class: pagefile.ClassManifest})
	if !errors.Is(err, tier.ErrNotFound) {
		return err
	}
	m, err := tier.ReadManifest(ctx, s.disk, fingerprint)
	if errors.Is(err, tier.ErrNotFound) || errors.Is(err, pagefile.ErrDamaged) {
		return nil // pages are good without it
	}
	if err != nil {
		return err
	}
	return tier.WriteManifest(ctx, s.guard, fingerprint, m)
}
