package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/kvcache/tiering/tierenv"
)

// minPickDigits keeps a word from being taken for the beginning of a digest.
const minPickDigits = 4

// picked is a choice of fingerprints.
type picked struct {
	model string                 // what was asked for
	keys  map[diskstore.Key]bool // what that is
	uses  []diskstore.FingerprintUsage
}

func (p picked) has(key diskstore.Key) bool { return p.keys[key] }

// pick finds the fingerprints that what stands for: a model's name, or the
// beginning of the digest of its weights, or of a fingerprint. A model has one
// fingerprint for each engine, cache type and so on.
func (a *app) pick(ctx context.Context, root *diskstore.Root, what string) (picked, error) {
	usage, err := root.Usage(ctx)
	if err != nil {
		return picked{}, err
	}
	p := picked{model: what, keys: make(map[diskstore.Key]bool)}
	names := a.names()
	weights := make(map[string]bool)
	byName := false
	for _, use := range slices.Concat(usage.Local.Fingerprints, usage.Remote.Fingerprints) {
		w := use.Identity[tierenv.KeyWeights]
		named := names.has(w, what)
		byDigest := isDigits(what) && strings.HasPrefix(w, what)
		byKey := isDigits(what) && strings.HasPrefix(use.Fingerprint.String(), what)
		if !named && !byDigest && !byKey {
			continue
		}
		byName = byName || named
		if byKey && !byDigest {
			w = use.Fingerprint.String() // each fingerprint stands for itself
		}
		weights[w] = true
		p.keys[use.Fingerprint] = true
		p.uses = append(p.uses, use)
	}
	switch {
	case len(p.keys) == 0 && usage.RemoteErr != nil:
		return p, fmt.Errorf("nothing is stored locally for %q, and the remote tier cannot be listed: %w", what, usage.RemoteErr)
	case len(p.keys) == 0:
		return p, fmt.Errorf("nothing is stored for %q; kvtier ls shows what there is", what)
	case len(weights) > 1 && !byName:
		return p, fmt.Errorf("%q could be %s; give more digits", what, strings.Join(sortedShort(weights), " or "))
	}
	return p, nil
}

// isDigits reports whether s can be the beginning of a digest.
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
