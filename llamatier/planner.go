package llamatier

import (
	"context"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/telemetry/why"
)

// planner decides how far a prompt is restored.
type planner struct {
	store  *disk
	form   form
	reader *reader // of pages that measure the speed of a tier
	gate   *engine.Gate
	lossy  bool // Options.Lossy
	drafts bool // Options.Drafts
}

// draftTokens are the last tokens of a prompt that an engine with drafts computes although they are
// stored: a draft model knows no token that was restored, and the nearest ones help it most.
const draftTokens = 32

// plan finds the stored pages of a prompt after which the engine can go on, of which the slot
// holds some tokens already. For exact pages that many of these tokens as loss says are given up.
// Pages that take longer to read than to compute are left out.
func (d *planner) plan(ctx context.Context, tokens []int32, media []llamastate.Medium, held, loss int) *plan {
	if n := len(media); n > 0 && media[n-1].End() == len(tokens) {
		// The engine computes at least one token, and fails where that is the last one of an image.
		tokens, media = tokens[:media[n-1].Start], media[:n-1]
	}
	found, err := d.find(ctx, tokens, media, held)
	p := &plan{held: held - loss, media: media, refs: found.Exact, slow: engine.SlowTier(found.Exact, err), found: max(endOf(found.Exact), endOf(found.State))}
	if d.form.shape.HasEnd() {
		p.refs = found.State
	}
	p.tokens = tokens[:p.end(len(p.refs))]
	if p.found > len(p.tokens) {
		p.unread = why.UnreadState
	}
	if d.drafts && !d.form.shape.HasEnd() {
		p.shorten(len(tokens) - draftTokens)
	}
	p.whole()
	if found.Mixed == nil {
		return d.paying(ctx, p)
	}
	least := max(len(p.tokens), held) + d.form.pageTokens
	mixed := &plan{held: held, media: media, slow: p.slow, refs: found.Mixed, found: endOf(found.Mixed), tokens: tokens[:endOf(found.Mixed)]}
	mixed.whole()
	if d.paying(ctx, mixed); len(mixed.tokens) >= least && mixed.worth() {
		return mixed
	}
	p.found, p.unread, p.unreadTier = mixed.found, mixed.unread, mixed.unreadTier
	return d.paying(ctx, p)
}

// find looks up the stored pages of a prompt, and of a model with windows or recurrent layers those
// after which the engine can go on. The error says that nothing is known of pages behind them.
func (d *planner) find(ctx context.Context, tokens []int32, media []llamastate.Medium, held int) (diskstore.Found, error) {
	p := diskstore.Prompt{Tokens: tokens, Beyond: held}
	if d.form.shape.HasEnd() {
		// The engine computes at least one token, and cannot take one back.
		p.Tokens = tokens[:max(0, len(tokens)-1)]
		p.State = func(at int) bool { _, inside := llamastate.Inside(media, at); return !inside }
		p.Beyond = d.form.window // see llamastate.Shape.Build
	} else if d.lossy {
		p.Forms = diskstore.ExactFirst
	}
	return d.store.Find(ctx, p)
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
