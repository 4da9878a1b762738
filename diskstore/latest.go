package diskstore

import (
	"context"
	"math"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// PageTokens is the position and the tokens of a page, from its header.
type PageTokens struct {
	Key, Parent pagefile.Key
	Start       uint32 // position of the first token
	Tokens      []int32
}

// Latest returns the most recently used full pages without media, at most `most` of them, the
// most recent first: the local tier's pages, then pages that only the remote tier has. The first
// call for at most Options.LatestPages uses the result of Open's count, and does not see later
// changes; other calls list the tiers. Latest reads headers, and waits while Reads and Puts
// run. Pages that cannot be read are left out; Read finds their damage. Latest returns the pages
// found so far together with tier.ErrClosed, ctx's error or an error of listing the local tier.
func (s *Store) Latest(ctx context.Context, most int) ([]PageTokens, error) {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var found []PageTokens
	seen := make(map[pagefile.Key]bool)
	for _, lv := range s.levels(tier.Local) {
		infos, err := lv.latest(ctx, most)
		if err != nil {
			lv.noteTierError(err)
			if lv == s.local || ctx.Err() != nil {
				return found, err
			}
			continue
		}
		for _, info := range infos {
			if len(found) == most {
				return found, nil
			}
			if err := s.traffic.StandBack(ctx); err != nil {
				return found, err
			}
			h, err := s.headerOf(ctx, lv.tier, info.Name)
			if err != nil || seen[info.Key] || len(h.Media) > 0 || h.PageTokens != s.opt.PageTokens {
				continue
			}
			seen[info.Key] = true
			found = append(found, PageTokens{Key: info.Key, Parent: h.Parent, Start: h.Start, Tokens: h.Tokens})
		}
	}
	return found, nil
}

func newLatest(fingerprint pagefile.Key, most int) *recents {
	r := newRecents(fingerprint, math.MaxInt64)
	r.most = most
	return r
}

// latest returns at least `most` of a tier's latest full pages, the most recent first, if the
// tier has as many.
func (lv *level) latest(ctx context.Context, most int) ([]tier.Info, error) {
	if most <= lv.s.opt.LatestPages {
		if _, err := lv.awaitFirst(ctx); err != nil {
			return nil, err
		}
		if latest := lv.first.takeLatest(); latest != nil {
			return latest.order(), nil
		}
	}
	found := &wanted{latest: newLatest(lv.s.opt.Fingerprint, most)}
	err := lv.list(ctx, found.add)
	return found.latest.order(), err
}
