package diskstore

import (
	"context"
	"errors"
	"fmt"
	"maps"

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
	return s.writeManifest(ctx, t, s.opt.Fingerprint)
}

// writeManifest writes the manifest of this store's pages, exact or lossy ones.
func (s *Store) writeManifest(ctx context.Context, t tier.Tier, fingerprint pagefile.Key) error {
	identity := s.opt.Identity
	if fingerprint == s.pages.Lossy {
		identity = make(map[string]string)
		maps.Copy(identity, s.opt.Identity)
		identity[tier.KeyLossyOf] = s.opt.Fingerprint.String()
	}
	return tier.WriteManifest(ctx, t, fingerprint, &tier.Manifest{
		Schema: pagefile.Schema, Fingerprint: fingerprint.String(), PageTokens: s.opt.PageTokens, Identity: identity,
	})
}

// describe writes the manifest of this store's pages if a tier has no file there: kvtier rm
// beside a server removes it. A page without one is good, and nothing says which model it is of.
func (s *Store) describe(ctx context.Context, t tier.Tier, fingerprint pagefile.Key) error {
	_, err := t.Stat(ctx, pagefile.Name{Fingerprint: fingerprint, Class: pagefile.ClassManifest})
	if !errors.Is(err, tier.ErrNotFound) {
		return err
	}
	if err := s.writeManifest(ctx, t, fingerprint); err != nil {
		return fmt.Errorf("describe the pages of %v: %w", fingerprint, err)
	}
	return nil
}

// manifestBelow makes the remote tier describe a page that moves there.
func (s *Store) manifestBelow(ctx context.Context, d descent) error {
	switch {
	case d.cold != nil:
		return s.describe(ctx, s.guard, s.pages.Lossy)
	case d.info.Fingerprint == s.opt.Fingerprint:
		return s.describe(ctx, s.guard, s.opt.Fingerprint)
	}
	return s.copyManifest(ctx, d.info.Fingerprint)
}

// copyManifest copies the manifest of another store's pages to the remote tier.
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
