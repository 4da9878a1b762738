package diskstore

import (
	"context"
	"errors"
)

// ensureManifest writes this store's manifest where the tier has none that can
// be read. It returns ErrMismatch when the one there is for another page size,
// which the fingerprint should have told apart.
func (s *Store) ensureManifest(ctx context.Context, t Tier) error {
	m, err := readManifest(ctx, t, s.opt.Fingerprint)
	switch {
	case err == nil && m.PageTokens != s.opt.PageTokens:
		return mismatch("fingerprint %v has pages of %d tokens, want %d", s.opt.Fingerprint, m.PageTokens, s.opt.PageTokens)
	case err == nil:
		return nil
	case !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrDamaged):
		return err
	}
	return writeManifest(ctx, t, s.opt.Fingerprint, &Manifest{
		Schema: schema, Fingerprint: s.opt.Fingerprint.String(), PageTokens: s.opt.PageTokens, Identity: s.opt.Identity,
	})
}

// copyManifest makes the remote tier able to say what the pages of a
// fingerprint are that move there.
func (s *Store) copyManifest(ctx context.Context, fingerprint Key) error {
	_, err := s.remote.Stat(ctx, Name{Fingerprint: fingerprint, Class: ClassManifest})
	if !errors.Is(err, ErrNotFound) {
		return err
	}
	m, err := readManifest(ctx, s.local, fingerprint)
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrDamaged) {
		return nil // pages are good without it
	}
	if err != nil {
		return err
	}
	return writeManifest(ctx, s.remote, fingerprint, m)
}
