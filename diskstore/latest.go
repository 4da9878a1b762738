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
// most recent first: the local tier's pages, then pages that only the remote tier has. Latest
// lists the tiers and reads headers, and waits while Reads and Puts run. Pages that cannot be
// read are left out; Read finds their damage. Latest returns the pages found so far together
// with tier.ErrClosed, ctx's error or an error of listing the local tier.
func (s *Store) Latest(ctx context.Context, most int) ([]PageTokens, error) {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	var found []PageTokens
	seen := make(map[pagefile.Key]bool)
	for _, lv := range s.levels(tier.Local) {
		recent := newRecents(s.opt.Fingerprint, math.MaxInt64)
		recent.most = most
		err := lv.list(ctx, func(info tier.Info) {
			if info.Class == pagefile.ClassPage {
				recent.add(info)
			}
		})
		if err != nil {
			lv.noteTierError(err)
			if lv == s.local || ctx.Err() != nil {
				return found, err
			}
			continue
		}
		for _, info := range recent.order() {
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
