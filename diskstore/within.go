package diskstore

import (
	"cmp"
	"context"
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// LayoutOf returns the layout of the page that ref describes. LayoutOf reads only the page's
// header, and returns tier.ErrNotFound, pagefile.ErrDamaged, pagefile.ErrMismatch,
// tier.ErrTierDown, tier.ErrTierTimeout, tier.ErrClosed, ctx's error or an error of the filesystem.
func (s *Store) LayoutOf(ctx context.Context, ref Ref) (pagefile.Layout, error) {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return pagefile.Layout{}, err
	}
	defer leave()
	for _, lv := range s.tiers.from(ref.Tier) {
		h, herr := tier.ReadHeader(ctx, lv.tier, ref.name(s.pages))
		if herr == nil {
			return h.Layout, nil
		}
		err = cmp.Or(err, herr)
	}
	return pagefile.Layout{}, err
}

// TailsWithin returns the exact tails of parent whose tokens and media are all in a sequence, the
// longest first. tokens are the sequence's tokens from position start on, as in ChainFrom.
// TailsWithin never fails: tails that cannot be read are left out, and all but the longest
// wholeTries of each tier.
func (s *Store) TailsWithin(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) []Ref {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return nil
	}
	defer leave()
	remoteCtx, cancel := context.WithTimeout(ctx, s.find.remoteTimeout)
	defer cancel()
	tokens = tokens[:min(len(tokens), s.opt.PageTokens)]
	media = pagefile.MediaWithin(media, start, len(tokens))
	var refs []Ref
	at := after{s.opt.Fingerprint, parent, start}
	for _, lv := range s.tiers {
		tierCtx := lv.lookupCtx(ctx, remoteCtx)
		for _, name := range lv.wholeTails(tierCtx, at, tokens, media) {
			known := slices.ContainsFunc(refs, func(r Ref) bool { return r.Key == name.Key })
			if known || tierCtx.Err() != nil {
				continue
			}
			if ref, _ := lv.match(tierCtx, name, parent, start, tokens, media); ref.Tokens > 0 && ref.Tokens == ref.Stored {
				refs = append(refs, ref)
			}
		}
	}
	slices.SortStableFunc(refs, func(a, b Ref) int { return cmp.Compare(b.Tokens, a.Tokens) })
	return refs
}
