package kvcache

import (
	"context"
	"slices"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

/*
Lossy pages. A page that moved to a slower tier may have fewer bits there, and then stands for the
exact page with the same key:

	prompt     [ page 0 ][ page 1 ][ page 2 ][ page 3 ][ tail ]
	exact        stored    stored      -       stored      -       ends after page 1
	mixed        exact     exact     lossy     exact     lossy     reaches the end
	slot         exact     exact   | broken …

Rows of page 3 are exact, but the slot is broken from page 2 on: rows computed after a lossy row
depend on it, and a chain with a hole is found by nobody.
*/

// mixed extends a prompt's exact pages with a chain that has lossy pages where no tier has exact
// ones. p is a plan without pages, parent is the key of the page before start. mixed reports
// whether the plan with these pages is worth reading and reaches at least a page further than the
// exact ones, or than the slot.
func (r *restoring) mixed(ctx context.Context, p plan, exact []diskstore.Ref, limit int, parent pagefile.Key, start int) (plan, bool) {
	if !r.restoresLossy() {
		return plan{}, false
	}
	without := p
	without.take(exact, limit)
	least := max(r.result.Held, without.end, p.base) + r.opts.PageTokens
	if least > limit {
		return plan{}, false
	}
	if n := len(exact); n > 0 && !exact[n-1].Whole() {
		exact = exact[:n-1]
	}
	after, from := parent, start
	if n := len(exact); n > 0 {
		after, from = exact[n-1].Key, int(exact[n-1].Start)+exact[n-1].Tokens
	}
	more, err := r.store.chainLossy(ctx, after, from, p.prompt.tokens[from:], p.prompt.media)
	p.take(slices.Concat(exact, more), limit)
	if p.end < least {
		return plan{}, false
	}
	r.lookedUp(&p, p.refs, limit, err, parent, start)
	return p, r.worth(ctx, &p, least)
}

// restoresLossy reports whether lossy pages are restored. A window and a state belong to one position
// each, from which nothing exact could follow.
func (t *TieredCausal) restoresLossy() bool { return t.opts.Lossy && t.caches.divisible() }

// standing looks up the pages that stand for pages of a slot: exact ones, and lossy ones where these
// are restored. A page that moved down stays there although the slot has its rows. Stored near by
// again, the page would push out others, which move down in their turn: slots that are together larger
// than the local tier would write all their pages at every turn.
func (t *TieredCausal) standing(ctx context.Context, parent pagefile.Key, start int, tokens []int32, media []pagefile.Media) ([]diskstore.Ref, error) {
	if t.restoresLossy() {
		return t.store.chainLossy(ctx, parent, start, tokens, media)
	}
	return t.store.chainFrom(ctx, parent, start, tokens, media)
}

// lossyFrom is the position of the plan's first row from a lossy page; the plan's end without one.
func (p *plan) lossyFrom() int {
	for _, ref := range p.refs {
		if ref.Lossy {
			return max(p.base, int(ref.Start))
		}
	}
	return p.end
}
