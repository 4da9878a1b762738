package tier

import "github.com/kvtier/kvtier/diskstore/pagefile"

// KeyLossyOf is the line of the identity of lossy pages that has the fingerprint of the exact pages
// for which they stand. The other lines are those of the exact pages.
const KeyLossyOf = "lossy_of"

// LossyOf returns the fingerprint of the exact pages for which the pages of a fingerprint stand, and
// false for a fingerprint of exact pages.
func LossyOf(fingerprint pagefile.Key, identity map[string]string) (exact pagefile.Key, lossy bool) {
	exact, err := pagefile.ParseKey(identity[KeyLossyOf])
	return exact, err == nil && pagefile.ColdFingerprint(exact) == fingerprint
}
