package diskstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// maxManifestBytes bounds what is read of a manifest, which is never trusted.
const maxManifestBytes = 1 << 20

// Manifest is <fingerprint>/manifest.json: what a fingerprint was computed
// from, for people and tools.
type Manifest struct {
	Schema      int               `json:"schema"`
	Fingerprint string            `json:"fingerprint"`
	PageTokens  int               `json:"page_tokens"`
	Identity    map[string]string `json:"identity"`
}

// readManifest reads a fingerprint's manifest from a tier. It returns
// ErrNotFound, ErrDamaged, or an error of the tier.
func readManifest(ctx context.Context, t Tier, fingerprint Key) (*Manifest, error) {
	blob, err := t.Open(ctx, Name{Fingerprint: fingerprint, Class: ClassManifest})
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	return decodeManifest(ctx, blob, fingerprint)
}

// decodeManifest reads an open manifest.
func decodeManifest(ctx context.Context, blob Blob, fingerprint Key) (*Manifest, error) {
	if n := blob.Info().Bytes; n > maxManifestBytes {
		return nil, damaged("manifest of %v is %d bytes", fingerprint, n)
	}
	buf := make([]byte, blob.Info().Bytes)
	if err := readFull(ctx, blob, buf, 0); err != nil {
		return nil, err
	}
	m := new(Manifest)
	if err := json.Unmarshal(buf, m); err != nil {
		return nil, damaged("parse manifest of %v: %v", fingerprint, err)
	}
	if m.Fingerprint != fingerprint.String() {
		return nil, damaged("manifest of %v names fingerprint %q", fingerprint, m.Fingerprint)
	}
	return m, nil
}

// writeManifest makes m durable in a tier.
func writeManifest(ctx context.Context, t Tier, fingerprint Key, m *Manifest) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("encode manifest: %w", err)
	}
	up, err := t.Create(ctx, Name{Fingerprint: fingerprint, Class: ClassManifest})
	if err != nil {
		return err
	}
	defer up.Abort()
	if err := up.Write(ctx, append(text, '\n')); err != nil {
		return err
	}
	_, err = up.Commit(ctx, time.Now())
	return err
}

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
