// Package names says how the pages of one store are called in its tiers.
package names

import (
	"context"
	"errors"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// Pages are the pages of one store: exact ones, and lossy ones that stand for them. A lossy page has the key
// of the exact one and a fingerprint of its own, so that a look-up for exact pages never finds one.
type Pages struct {
	Exact pagefile.Key // fingerprint of exact pages
	Lossy pagefile.Key // fingerprint of lossy pages

	// Cold reports that pages become lossy when they move down, so that look-ups for a page of
	// either kind look for both.
	Cold bool
}

// Of returns the pages of a fingerprint.
func Of(fingerprint pagefile.Key, cold bool) *Pages {
	return &Pages{Exact: fingerprint, Lossy: pagefile.ColdFingerprint(fingerprint), Cold: cold}
}

// Page returns the name of an exact full page.
func (p *Pages) Page(key pagefile.Key) pagefile.Name {
	return pagefile.Name{Fingerprint: p.Exact, Class: pagefile.ClassPage, Key: key}
}

// Tail returns the name of an exact tail.
func (p *Pages) Tail(key pagefile.Key) pagefile.Name {
	return pagefile.Name{Fingerprint: p.Exact, Class: pagefile.ClassTail, Key: key}
}

// ExactOf returns the name of the exact page for which a page stands.
func (p *Pages) ExactOf(name pagefile.Name) pagefile.Name {
	name.Fingerprint = p.Exact
	return name
}

// Fingerprints returns those of exact pages and, with Cold, of lossy ones after it.
func (p *Pages) Fingerprints() []pagefile.Key {
	if !p.Cold {
		return []pagefile.Key{p.Exact}
	}
	return []pagefile.Key{p.Exact, p.Lossy}
}

// Stat describes a tier's file of a full page: the exact one or, with Cold, without that the lossy one.
func (p *Pages) Stat(ctx context.Context, t tier.Finder, key pagefile.Key) (tier.Info, error) {
	info, err := tier.Stat(ctx, t, p.Page(key))
	if p.Cold && errors.Is(err, tier.ErrNotFound) {
		return tier.Stat(ctx, t, pagefile.ColdName(p.Page(key)))
	}
	return info, err
}

// CheckPlace returns pagefile.ErrMismatch unless a page belongs at a name, and is lossy exactly where
// the name is that of a lossy page: a look-up of exact pages never gives lossy rows.
func (p *Pages) CheckPlace(h *pagefile.Header, name pagefile.Name) error {
	if err := h.CheckName(name); err != nil {
		return err
	}
	if lossy := name.Fingerprint == p.Lossy; h.Lossy() != lossy {
		return pagefile.Mismatch("page is lossy: %t, want %t", h.Lossy(), lossy)
	}
	return nil
}
