package tierenv

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// Schema changes when the meaning of a page's rows does.
const Schema = "1"

// Keys of the identity: each is part of the fingerprint, and a page is only used where all
// are equal. They are written beside the pages for people and tools.
const (
	KeySchema     = "schema"
	KeyWeights    = "weights"  // SHA-256 of the GGUF file, by which Ollama names its blob
	KeyAdapters   = "adapters" // the same of each adapter, with commas between
	KeyCacheType  = "cache_type"
	KeyEngine     = "engine"
	KeyNumerics   = "numerics"
	KeyPageTokens = "page_tokens"
	KeyNamespace  = "namespace"
)

// Fingerprint is the SHA-256 over the identity's keys and values, each with its length, in
// the order of the keys.
func Fingerprint(identity map[string]string) pagefile.Key {
	h := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(identity)) {
		value := identity[key]
		fmt.Fprintf(h, "%d:%s=%d:%s;", len(key), key, len(value), value)
	}
	return pagefile.Key(h.Sum(nil))
}
