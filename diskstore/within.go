package diskstore

import (
	"cmp"
	"context"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

func (s *Store) Chain(ctx context.Context, tokens []int32, media []pagefile.Media) []Ref {
	return s.Find(ctx, Prompt{Tokens: tokens, Media: media}).Exact
}

func (s *Store) ChainFrom(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) []Ref {
	return s.Find(ctx, Prompt{Tokens: tokens, Media: media, Parent: parent, Start: start}).Exact
}

func (s *Store) ChainLossy(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) []Ref {
	return s.Find(ctx, Prompt{Tokens: tokens, Media: media, Parent: parent, Start: start, Forms: AnyForm}).Mixed
}

func (s *Store) TailsWithin(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) []Ref {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return nil
	}
	defer leave()
	return s.lookup.tailsWithin(ctx, s.lookup.after(Prompt{Start: start, Tokens: tokens, Media: media}, parent, start))
}

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
