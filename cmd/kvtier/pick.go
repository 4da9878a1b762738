package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// minPickDigits is the least number of digits that name a digest, so that a short word is no
// digest.
const minPickDigits = 4

// picked is a choice of fingerprints.
type picked struct {
	model string                // as the user named it
	keys  map[pagefile.Key]bool // the model's fingerprints
}

func (p picked) has(key pagefile.Key) bool { return p.keys[key] }

// pick finds the fingerprints of a model by its name, or else by the beginning of the digest
// of its weights, or of a fingerprint. A model has one fingerprint for each engine, cache
// type and so on. A fingerprint of exact pages names those of its lossy pages as well.
func (a *app) pick(ctx context.Context, root *roots, what string) (picked, error) {
	usage, err := root.Usage(ctx)
	if err != nil {
		return picked{}, err
	}
	names := a.names()
	all := slices.Concat(usage.Local.Fingerprints, usage.Remote.Fingerprints)
	p := newPicked(what, all, func(use diskstore.FingerprintUsage) bool {
		return names.Has(use.Identity[tierenv.KeyWeights], what)
	})
	if len(p.keys) > 0 {
		return p, nil
	}
	meant := make(map[string]bool) // identities whose digests begin with the digits
	p = newPicked(what, all, func(use diskstore.FingerprintUsage) bool {
		digest, own := use.Identity[tierenv.KeyWeights], use.Fingerprint.String()
		exact, lossy := tier.LossyOf(use.Fingerprint, use.Identity)
		switch {
		case !isDigits(what):
			return false
		case strings.HasPrefix(digest, what):
			meant[digest] = true
		case lossy && strings.HasPrefix(exact.String(), what):
			meant[exact.String()] = true
		case strings.HasPrefix(own, what):
			meant[own] = true
		default:
			return false
		}
		return true
	})
	switch {
	case len(p.keys) == 0 && usage.RemoteErr != nil:
		return p, fmt.Errorf("nothing is stored locally for %q, and the remote tier cannot be listed: %w", what, usage.RemoteErr)
	case len(p.keys) == 0 && slices.ContainsFunc(all, func(use diskstore.FingerprintUsage) bool {
		return len(names.Names[use.Identity[tierenv.KeyWeights]]) == 0
	}):
		return p, fmt.Errorf("nothing is stored for %q; kvtier ls lists the models with pages; name a model that Ollama no longer has by the digits in that list", what)
	case len(p.keys) == 0:
		return p, fmt.Errorf("nothing is stored for %q; kvtier ls lists the models with pages", what)
	case len(meant) > 1:
		return p, fmt.Errorf("%q could be %s; give more digits", what, strings.Join(sortedShort(meant), " or "))
	}
	return p, nil
}

// pickAll picks several models, each of which must have pages.
func (a *app) pickAll(ctx context.Context, root *roots, models []string) (picked, error) {
	all := picked{keys: make(map[pagefile.Key]bool)}
	for _, what := range models {
		p, err := a.pick(ctx, root, what)
		if err != nil {
			return all, err
		}
		maps.Copy(all.keys, p.keys)
	}
	return all, nil
}

// newPicked keeps the fingerprints of all that chosen accepts.
func newPicked(what string, all []diskstore.FingerprintUsage, chosen func(diskstore.FingerprintUsage) bool) picked {
	p := picked{model: what, keys: make(map[pagefile.Key]bool)}
	for _, use := range all {
		if chosen(use) {
			p.keys[use.Fingerprint] = true
		}
	}
	return p
}

// isDigits reports whether s can begin a digest.
func isDigits(s string) bool {
	return len(s) >= minPickDigits && strings.Trim(s, "0123456789abcdef") == ""
}

func sortedShort(digests map[string]bool) []string {
	var list []string
	for d := range digests {
		list = append(list, short(d))
	}
	slices.Sort(list)
	return list
}

// modelUsage explains the flag whose value pick reads.
const modelUsage = "name of a model, or the first digits of its weights' digest or of an ID that kvtier ls shows"
