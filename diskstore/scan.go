package diskstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/internal/counted"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// FingerprintUsage describes the files of one fingerprint in one tier.
type FingerprintUsage struct {
	Fingerprint pagefile.Key
	Identity    map[string]string // nil when its manifest cannot be read
	Pages       int
	Tails       int
	Bytes       int64       // physical
	LastUsed    time.Time   // zero when there is no page
	Hits        ledger.Hits // set by Root.Usage only

	// Unused is the time since the last use, the smaller of the values by this machine's clock
	// and by the filesystem's. Set by Reclaim only.
	Unused time.Duration
	// Tier is the tier that holds the pages. Set by Reclaim only.
	Tier string
}

// TierUsage is the result of Survey for one tier.
type TierUsage struct {
	Pages, Tails int                // of this store's fingerprint
	Bytes        int64              // physical, of this store's fingerprint
	RootBytes    int64              // physical, of all fingerprints below the root
	Lossy        FingerprintUsage   // lossy pages that stand for pages of this store's fingerprint
	Others       []FingerprintUsage // other fingerprints, in order of key
}

// Usage is the result of Survey.
type Usage struct {
	Local  TierUsage
	Remote TierUsage

	// RemoteErr is the reason for an empty Remote: nil when the tier was counted, or without a
	// remote tier.
	RemoteErr error
}

// Survey returns the result of the count that Open begins in the background: Survey waits for
// that count and lists nothing again. Later changes are not in the result. Survey returns an error
// when the local tier cannot be listed.
func (s *Store) Survey(ctx context.Context) (Usage, error) {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return Usage{}, err
	}
	defer leave()
	var u Usage
	for _, lv := range s.tiers {
		found, err := lv.files.AwaitFirst(ctx, lv.counting...)
		if err != nil {
			err = fmt.Errorf("scan %s: %w", lv.where, err)
		}
		switch {
		case lv.far && err != nil:
			u.RemoteErr = err
		case lv.far:
			u.Remote = lv.usage(ctx, found)
		case err != nil:
			return Usage{}, err
		default:
			u.Local = lv.usage(ctx, found)
		}
	}
	return u, nil
}

// usage describes the result of a count.
func (lv *level) usage(ctx context.Context, found *counted.Tally) (u TierUsage) {
	for _, use := range lv.identify(ctx, found) {
		u.RootBytes += use.Bytes
		switch use.Fingerprint {
		case lv.pages.Exact:
			u.Pages, u.Tails, u.Bytes = use.Pages, use.Tails, use.Bytes
		case lv.pages.Lossy:
			u.Lossy = use
		default:
			u.Others = append(u.Others, use)
		}
	}
	return u
}

// identify returns the numbers and the identity of each fingerprint found, in order of key. A
// fingerprint without files may have a directory.
func (lv *level) identify(ctx context.Context, found *counted.Tally) []FingerprintUsage {
	fingerprints := slices.Clone(found.Known)
	slices.SortFunc(fingerprints, func(a, b pagefile.Key) int { return slices.Compare(a[:], b[:]) })
	uses := make([]FingerprintUsage, len(fingerprints))
	for i, fp := range fingerprints {
		uses[i].Fingerprint = fp
		if use := found.Fingerprints[fp]; use != nil {
			uses[i].Pages, uses[i].Tails, uses[i].Bytes, uses[i].LastUsed = use.Pages, use.Tails, use.Bytes, use.LastUsed
		}
		if m, err := tier.ReadManifest(ctx, lv.tier, fp); err == nil {
			uses[i].Identity = m.Identity
		}
	}
	return uses
}
