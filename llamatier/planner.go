package llamatier

import (
	"context"
	"slices"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/telemetry/why"
)

// planner decides how far a prompt is restored.
type planner struct {
	store    Store
	form     form
	reader   *reader // of pages that measure the speed of a tier
	gate     *engine.Gate
	patience *patience
	lossy    bool // Options.Lossy
}

// plan finds the stored pages of a prompt after which the engine can go on, of which the slot
// holds some tokens already. For exact pages that many of these tokens as loss says are given up.
// Pages that take longer to read than to compute are left out.
func (d *planner) plan(ctx context.Context, tokens []int32, held, loss int) *plan {
	p := &plan{held: held - loss}
	p.refs, p.found = d.find(ctx, tokens)
	p.tokens = tokens[:p.end(len(p.refs))]
	if p.found > len(p.tokens) {
		p.unread = why.UnreadState
	}
	least := max(len(p.tokens), held) + d.form.pageTokens
	mixed := d.mixed(ctx, tokens, p.refs, least)
	if mixed == nil {
		return d.paying(ctx, p)
	}
	mixed.held = held
	if d.paying(ctx, mixed); len(mixed.tokens) >= least && mixed.worth() {
		return mixed
	}
	p.found, p.unread, p.unreadTier = mixed.found, mixed.unread, mixed.unreadTier
	return d.paying(ctx, p)
}

// mixed returns a plan of exact pages and of the chain behind them that has lossy pages where no
// tier has exact ones; nil if it ends before position least.
func (d *planner) mixed(ctx context.Context, tokens []int32, exact []diskstore.Ref, least int) *plan {
	if !d.lossy || d.form.shape.HasEnd() || least > len(tokens) {
		return nil
	}
	if n := len(exact); n > 0 && !exact[n-1].Whole() {
		exact = exact[:n-1]
	}
	parent, start := d.form.root, endOf(exact)
	if n := len(exact); n > 0 {
		parent = exact[n-1].Key
	}
	refs := slices.Concat(exact, d.store.ChainLossy(ctx, parent, start, tokens[start:], nil))
	if endOf(refs) < least {
		return nil
	}
	return &plan{refs: refs, tokens: tokens[:endOf(refs)], found: endOf(refs)}
}

// paying leaves pages out of a plan that take longer to read than to compute, and returns the plan.
func (d *planner) paying(ctx context.Context, p *plan) *plan {
	if !p.worth() {
		return p
	}
	c := d.form.costs(p)
	n := d.gate.Pays(c)
	if n < len(p.refs) {
		probed := *p // which is about to be cut
		d.gate.Skip(context.WithoutCancel(ctx), c, n, func(ctx context.Context, i int) error { return d.reader.page(ctx, &probed, i).err })
		p.notRead(n, why.UnreadQuicker)
		p.cut(n)
	}
	return p
}

// find returns the stored pages of a prompt after which the engine can go on, and the number of
// leading tokens that are stored.
func (d *planner) find(ctx context.Context, tokens []int32) (refs []diskstore.Ref, found int) {
	if !d.form.shape.HasEnd() {
		refs = d.store.Chain(ctx, tokens, nil)
		return refs, endOf(refs)
	}
	// The engine computes at least one token, and cannot take one back.
	tokens = tokens[:max(0, len(tokens)-1)]
	refs = d.store.Chain(ctx, tokens, nil)
	found = endOf(refs)
	ctx, cancel := context.WithTimeout(ctx, d.patience.find) // a disk may be slow, and a prompt long
	defer cancel()
	for i := len(refs) - 1; i >= 0 && ctx.Err() == nil; i-- {
		ref := refs[i]
		candidates := d.store.TailsWithin(ctx, ref.Parent, int(ref.Start), tokens[ref.Start:], nil)
		if ref.Whole() {
			candidates = append([]diskstore.Ref{ref}, candidates...)
		}
		for _, c := range candidates {
			end := int(c.Start) + c.Tokens
			if end <= d.form.window {
				return nil, found // see llamastate.Shape.Build
			}
			if layout, err := d.store.LayoutOf(ctx, c); err == nil && layout.HasState() {
				return append(refs[:i:i], c), max(found, end)
			}
		}
	}
	return nil, found
}
