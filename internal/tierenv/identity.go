package tierenv

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// Schema changes when the meaning of a page's rows changes.
const Schema = "1"

// Keys of the identity. Each is part of the fingerprint, and a page is used only where all
// are equal. A manifest beside the pages has the identity for people and tools.
const (
	KeySchema     = "schema"
	KeyWeights    = "weights"    // SHA-256 of the GGUF file, as in the blob's name
	KeyAdapters   = "adapters"   // SHA-256 of each adapter, separated by commas
	KeyCacheType  = "cache_type" // such as f16; K's and V's where they differ, as in q8_0/f16
	KeyShape      = "shape"      // under llama-server: SHA-256 of the shape of a slot's file
	KeyEngine     = "engine"
	KeyNumerics   = "numerics"
	KeyPageTokens = "page_tokens"
	KeyNamespace  = "namespace"
)

// Fingerprint is the SHA-256 of the identity's keys and values, each with its length, in the
// order of the keys.
func Fingerprint(identity map[string]string) pagefile.Key {
	h := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(identity)) {
		value := identity[key]
		fmt.Fprintf(h, "%d:%s=%d:%s;", len(key), key, len(value), value)
	}
	return pagefile.Key(h.Sum(nil))
}
