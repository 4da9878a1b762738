package diskstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// FingerprintUsage is what one fingerprint holds in one tier.
type FingerprintUsage struct {
	Fingerprint pagefile.Key
	Identity    map[string]string // nil when its manifest cannot be read
	Pages       int
	Tails       int
	Bytes       int64       // physical
	LastUsed    time.Time   // zero when it holds no page
	Hits        ledger.Hits // known to Root.Usage alone

	// Unused is for how long it was not used, by this machine's clock and by the
	// filesystem's, whichever says less. Known to Reclaim alone.
	Unused time.Duration
}

// TierUsage is what Scan counted in one tier.
type TierUsage struct {
	Pages, Tails int                // of this store's fingerprint
	Bytes        int64              // physical, of this store's fingerprint
	RootBytes    int64              // physical, of all fingerprints below the root
	Others       []FingerprintUsage // other fingerprints, in order of key
}

// Usage is the result of Scan.
type Usage struct {
	Local  TierUsage
	Remote TierUsage

	// RemoteErr says why Remote is empty: nil when it was counted or there is
	// no remote tier.
	RemoteErr error
}

// Scan counts what both tiers hold by listing them, and brings Stats up to
// date. It returns an error when the local tier cannot be listed.
func (s *Store) Scan(ctx context.Context) (Usage, error) {
	return s.usageOf(ctx, func(lv *level, ctx context.Context) (*tally, error) {
		return lv.count(ctx, nil)
	})
}

// Survey is Scan of what the count found that Open begins in the background: it
// waits for that and lists nothing again. Later changes are not in it.
func (s *Store) Survey(ctx context.Context) (Usage, error) {
	return s.usageOf(ctx, (*level).awaitFirst)
}

// usageOf describes what a count of each tier found.
func (s *Store) usageOf(ctx context.Context, count func(*level, context.Context) (*tally, error)) (Usage, error) {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return Usage{}, err
	}
	defer leave()
	var u Usage
	if u.Local, err = s.local.tierUsage(ctx, count); err != nil {
		return Usage{}, fmt.Errorf("scan %s: %w", s.opt.Local.Root, err)
	}
	if s.remote != nil {
		if u.Remote, err = s.remote.tierUsage(ctx, count); err != nil {
			u.RemoteErr = fmt.Errorf("scan %s: %w", s.opt.Remote.Root, err)
		}
	}
	return u, nil
}

func (lv *level) tierUsage(ctx context.Context, count func(*level, context.Context) (*tally, error)) (TierUsage, error) {
	found, err := count(lv, ctx)
	if err != nil {
		return TierUsage{}, err
	}
	uses, err := lv.identify(ctx, found)
	if err != nil {
		return TierUsage{}, err
	}
	var u TierUsage
	for _, use := range uses {
		u.RootBytes += use.Bytes
		if use.Fingerprint == lv.s.opt.Fingerprint {
			u.Pages, u.Tails, u.Bytes = use.Pages, use.Tails, use.Bytes
			continue
		}
		u.Others = append(u.Others, use)
	}
	return u, nil
}

// identify returns what was found of each fingerprint, and what it stands for,
// in order of key. One that has no files may have a directory.
func (lv *level) identify(ctx context.Context, found *tally) ([]FingerprintUsage, error) {
	fingerprints, err := lv.tier.Fingerprints(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(fingerprints, func(a, b pagefile.Key) int { return slices.Compare(a[:], b[:]) })
	uses := make([]FingerprintUsage, len(fingerprints))
	for i, fp := range fingerprints {
		uses[i].Fingerprint = fp
		if use := found.fingerprints[fp]; use != nil {
			uses[i] = *use
		}
		if m, err := tier.ReadManifest(ctx, lv.tier, fp); err == nil {
			uses[i].Identity = m.Identity
		}
	}
	return uses, nil
}
