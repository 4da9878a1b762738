package diskstore

import (
	"cmp"
	"context"
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// LayoutOf returns what the page that ref stands for has. It reads the page's
// header only. It returns ErrNotFound, ErrDamaged, ErrMismatch, ErrTierDown,
// ErrTierTimeout, ErrClosed, ctx's error or an error of the filesystem.
func (s *Store) LayoutOf(ctx context.Context, ref Ref) (pagefile.Layout, error) {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return pagefile.Layout{}, err
	}
	defer leave()
	for _, lv := range s.levels(ref.Tier) {
		h, herr := s.headerOf(ctx, lv.tier, s.refName(ref))
		if herr == nil {
			return h.Layout, nil
		}
		err = cmp.Or(err, herr)
	}
	return pagefile.Layout{}, err
}

// TailsWithin returns the tails of parent all of whose tokens and media a sequence
// has, the longest first. tokens are those from position start on, as in ChainFrom.
// It never fails: tails that cannot be looked at are left out.
func (s *Store) TailsWithin(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) []Ref {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return nil
	}
	defer leave()
	remoteCtx, cancel := context.WithTimeout(ctx, s.opt.RemoteTimeout)
	defer cancel()
	tokens = tokens[:min(len(tokens), s.opt.PageTokens)]
	media = pagefile.MediaWithin(media, start, len(tokens))
	var refs []Ref
	for _, lv := range s.levels(tier.Local) {
		tierCtx, infos := lv.listTails(ctx, remoteCtx, parent)
		for _, info := range infos {
			known := slices.ContainsFunc(refs, func(r Ref) bool { return r.Key == info.Key })
			if known {
				continue
			}
			if ref, ok := lv.matchTail(tierCtx, info, start, tokens, media); ok && ref.Tokens == ref.Stored {
				refs = append(refs, ref)
			}
		}
	}
	slices.SortStableFunc(refs, func(a, b Ref) int { return cmp.Compare(b.Tokens, a.Tokens) })
	return refs
}
