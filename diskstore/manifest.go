package diskstore

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/kvtier/kvtier/diskstore/internal/names"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

type manifests struct {
	pages      *names.Pages
	pageTokens int
	identity   map[string]string
	origin     string
}

// severalOrigins is the origin of a model that stores had from different places.
const severalOrigins = "several"

// ensure writes this store's manifest if the tier has no readable one with its origin. ensure returns
// pagefile.ErrMismatch when that one has another page size, which the fingerprint should have distinguished.
func (m *manifests) ensure(ctx context.Context, t tier.Disk) error {
	there, err := tier.ReadManifest(ctx, t, m.pages.Exact)
	switch {
	case err == nil && there.PageTokens != m.pageTokens:
		return pagefile.Mismatch("fingerprint %v has pages of %d tokens, want %d", m.pages.Exact, there.PageTokens, m.pageTokens)
	case err == nil && (m.origin == "" || there.Origin == m.origin || there.Origin == severalOrigins):
		return nil
	case err == nil && there.Origin != "":
		return m.write(ctx, t, m.pages.Exact, severalOrigins)
	case err != nil && !errors.Is(err, tier.ErrNotFound) && !errors.Is(err, pagefile.ErrDamaged):
		return err
	}
	return m.write(ctx, t, m.pages.Exact, m.origin)
}

// write writes the manifest of this store's pages, exact or lossy ones.
func (m *manifests) write(ctx context.Context, t tier.Disk, fingerprint pagefile.Key, origin string) error {
	identity := m.identity
	if fingerprint == m.pages.Lossy {
		identity = make(map[string]string)
		maps.Copy(identity, m.identity)
		identity[tier.KeyLossyOf] = m.pages.Exact.String()
	}
	return tier.WriteManifest(ctx, t, fingerprint, &tier.Manifest{
		Schema: pagefile.Schema, Fingerprint: fingerprint.String(), PageTokens: m.pageTokens, Identity: identity, Origin: origin,
	})
}

// describe writes the manifest of this store's pages if a tier has no file there: kvtier rm
// beside a server removes it. A page without one is good, and nothing says which model it is of.
func (m *manifests) describe(ctx context.Context, t tier.Disk, fingerprint pagefile.Key) error {
	return ifUndescribed(ctx, t, fingerprint, func() error { return m.write(ctx, t, fingerprint, "") })
}

// below makes the remote tier describe a page that moves there. made tells that this store has made the
// page lossy. The manifest of another store's page is copied.
func (m *manifests) below(ctx context.Context, local, remote tier.Disk, fingerprint pagefile.Key, made bool) error {
	if made || fingerprint == m.pages.Exact {
		return m.describe(ctx, remote, fingerprint)
	}
	return ifUndescribed(ctx, remote, fingerprint, func() error {
		theirs, err := tier.ReadManifest(ctx, local, fingerprint)
		if errors.Is(err, tier.ErrNotFound) || errors.Is(err, pagefile.ErrDamaged) {
			return nil // pages are good without a manifest
		}
		if err != nil {
			return err
		}
		theirs.Origin = "" // a place on this machine
		return tier.WriteManifest(ctx, remote, fingerprint, theirs)
	})
}

// ifUndescribed calls write if a tier has no file in the place of a manifest.
func ifUndescribed(ctx context.Context, t tier.Disk, fingerprint pagefile.Key, write func() error) error {
	_, err := tier.Stat(ctx, t, pagefile.Name{Fingerprint: fingerprint, Class: pagefile.ClassManifest})
	if errors.Is(err, tier.ErrNotFound) {
		err = write()
	}
	if err != nil {
		return fmt.Errorf("describe the pages of %v: %w", fingerprint, err)
	}
	return nil
}
