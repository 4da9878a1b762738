package diskstore

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/branch"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

const (
	// elsewhereMax is the number of fingerprints of a tier that Elsewhere looks into.
	elsewhereMax = 16

	// elsewherePages bounds the pages that Elsewhere looks for under one fingerprint.
	elsewherePages = 1024

	// elsewherePatience bounds the time that Elsewhere takes for a tier.
	elsewherePatience = time.Second
)

// Elsewhere is the beginning of a sequence, stored under another fingerprint than the store's.
type Elsewhere struct {
	Fingerprint pagefile.Key
	Identity    map[string]string // from the manifest
	Tier        string            // Local or Remote
	PageTokens  int
	Tokens      int // leading tokens that are stored
}

// Elsewhere looks for the beginning of a sequence under the most recently used fingerprints of
// both tiers that have a manifest. Lossy pages count as pages of the fingerprint for whose pages they
// stand. Elsewhere looks at the names of files and reads no page, takes
// a bounded time, and is called behind a request. Fingerprints that could not be looked at are left out.
func (s *Store) Elsewhere(ctx context.Context, tokens []int32, media []pagefile.Media) []Elsewhere {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return nil
	}
	defer leave()
	var found []Elsewhere
	for _, lv := range s.tiers {
		if lv.answers() {
			found = append(found, lv.elsewhere(ctx, tokens, media)...)
		}
	}
	return found
}

func (lv *level) elsewhere(ctx context.Context, tokens []int32, media []pagefile.Media) (found []Elsewhere) {
	ctx, cancel := unhurried(ctx, elsewherePatience)
	defer cancel()
	seen := map[pagefile.Key]bool{lv.pages.Exact: true}
	for _, fingerprint := range lv.othersLately(ctx) {
		if ctx.Err() != nil {
			break
		}
		m, err := tier.ReadManifest(ctx, lv.tier, fingerprint)
		if err != nil || m.PageTokens <= 0 {
			continue
		}
		if exact, lossy := tier.LossyOf(fingerprint, m.Identity); lossy {
			fingerprint = exact
			delete(m.Identity, tier.KeyLossyOf)
		}
		if seen[fingerprint] {
			continue
		}
		seen[fingerprint] = true
		e := Elsewhere{Fingerprint: fingerprint, Identity: m.Identity, Tier: lv.name, PageTokens: m.PageTokens}
		if e.Tokens = lv.storedUnder(ctx, fingerprint, m.PageTokens, tokens, media); e.Tokens > 0 {
			found = append(found, e)
		}
	}
	return found
}

// othersLately returns other fingerprints below the root, the most recently used first, as of the
// first count: the fingerprints that have appeared since then come before.
func (lv *level) othersLately(ctx context.Context) []pagefile.Key {
	all, _, err := lv.tier.Survey(ctx)
	if err != nil {
		return nil
	}
	used := make(map[pagefile.Key]time.Time)
	if counted := lv.files.First.Result(); counted != nil {
		for fingerprint, use := range counted.Fingerprints {
			used[fingerprint] = use.LastUsed
		}
	}
	all = slices.DeleteFunc(all, func(k pagefile.Key) bool { return k == lv.pages.Exact || k == lv.pages.Lossy })
	slices.SortFunc(all, func(a, b pagefile.Key) int {
		at, known := used[a]
		bt, also := used[b]
		if known != also {
			if known {
				return 1
			}
			return -1
		}
		return cmp.Or(bt.Compare(at), slices.Compare(a[:], b[:]))
	})
	return all[:min(len(all), elsewhereMax)]
}

// storedUnder counts the leading tokens that are stored under a fingerprint, exact or lossy: full
// pages, or without any the longest tail whose tokens the sequence begins with.
func (lv *level) storedUnder(ctx context.Context, fingerprint pagefile.Key, size int, tokens []int32, media []pagefile.Media) int {
	parent, pages := fingerprint, 0
	for at := 0; at+size <= len(tokens) && pages < elsewherePages && ctx.Err() == nil; at += size {
		parent = pagefile.ChainKey(parent, tokens[at:at+size], pagefile.MediaWithin(media, at, size))
		name := pagefile.Name{Fingerprint: fingerprint, Class: pagefile.ClassPage, Key: parent}
		_, err := tier.Stat(ctx, lv.tier, name)
		if errors.Is(err, tier.ErrNotFound) {
			_, err = tier.Stat(ctx, lv.tier, pagefile.ColdName(name))
		}
		if err != nil {
			break
		}
		pages++
	}
	if pages > 0 {
		return pages * size
	}
	tail := tokens[:min(len(tokens), size-1)]
	longest := 0
	for _, among := range []pagefile.Key{fingerprint, pagefile.ColdFingerprint(fingerprint)} {
		found, err := branch.Find(ctx, lv.tier, branch.Prompt{
			Fingerprint: among, Parent: fingerprint, Tokens: tail, Media: pagefile.MediaWithin(media, 0, len(tail)), PageTokens: size,
		})
		if err != nil {
			return 0
		}
		for _, c := range found {
			if c.Whole() && c.Class == pagefile.ClassTail {
				longest = max(longest, c.Tokens)
			}
		}
	}
	return longest
}

// Identity is Options.Identity.
func (s *Store) Identity() map[string]string { return s.opt.Identity }
