package llamatier

import (
	"context"
	"slices"
	"sync"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
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
func (d *planner) plan(ctx context.Context, of Tenant, tokens []int32, media []llamastate.Medium, held, loss int) *plan {
	if n := len(media); n > 0 && media[n-1].End() == len(tokens) {
		// The engine computes at least one token, and fails where that is the last one of an image.
		tokens, media = tokens[:media[n-1].Start], media[:n-1]
	}
	found, err := d.find(ctx, of, tokens, media, held)
	p := &plan{held: held - loss, media: media, refs: found.Exact, slow: engine.SlowTier(found.Exact, err), found: max(endOf(found.Exact), endOf(found.State))}
	if d.form.shape.HasEnd() {
		p.refs = found.State
	}
	p.tokens = tokens[:endOf(p.refs)]
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
func (d *planner) find(ctx context.Context, of Tenant, tokens []int32, media []llamastate.Medium, held int) (diskstore.Found, error) {
	p := diskstore.Prompt{Tokens: tokens, Media: of.media(), Beyond: held}
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

// restoreMin is the least number of tokens for which a slot is replaced.
const restoreMin = 64

// plan is a number of stored pages, which are the beginning of a prompt.
type plan struct {
	tokens []int32 // of the pages
	held   int     // tokens of the prompt that the slot holds already
	refs   []diskstore.Ref
	media  []llamastate.Medium // of the prompt

	found      int        // leading tokens that are stored
	slow       string     // the tier that is too slow or hangs: nothing is known of the rest
	unread     why.Unread // why not all of these are used
	unreadTier string     // where the first of the others is
}

// notRead notes why the plan's pages from index n on are not used.
func (p *plan) notRead(n int, because why.Unread) {
	if n < len(p.refs) {
		p.unread, p.unreadTier = because, p.refs[n].Tier
	}
}

// cut leaves n pages, without the beginning of an image.
func (p *plan) cut(n int) {
	p.refs, p.tokens = p.refs[:n], p.tokens[:endOf(p.refs[:n])]
	p.whole()
}

// whole leaves out the rows of an image that is not stored as a whole: the engine has no use for them.
func (p *plan) whole() {
	if m, inside := llamastate.Inside(p.media, len(p.tokens)); inside {
		p.shorten(m.Start)
	}
}

// built are the media of the plan's pages.
func (p *plan) built() []llamastate.Medium {
	i := slices.IndexFunc(p.media, func(m llamastate.Medium) bool { return m.End() > len(p.tokens) })
	if i < 0 {
		return p.media
	}
	return p.media[:i]
}

// shorten leaves out rows from a position on.
func (p *plan) shorten(end int) {
	if end = max(0, end); end >= len(p.tokens) {
		return
	}
	n := slices.IndexFunc(p.refs, func(r diskstore.Ref) bool { return r.End() > end })
	p.notRead(n, why.UnreadQuicker)
	p.refs, p.tokens = slices.Clone(p.refs[:n+1]), p.tokens[:end]
	if last := &p.refs[n]; int(last.Start) < end {
		last.Tokens = end - int(last.Start)
	} else {
		p.refs = p.refs[:n]
	}
}

// worth reports whether the plan's pages hold enough that the slot does not hold.
func (p *plan) worth() bool { return len(p.tokens) >= p.held+restoreMin }

// lossy counts the tokens from the first lossy page on.
func (p *plan) lossy() int {
	for _, ref := range p.refs {
		if ref.Lossy {
			return len(p.tokens) - int(ref.Start)
		}
	}
	return 0
}

// endOf is the position after the last of some pages.
func endOf(refs []diskstore.Ref) int {
	if len(refs) == 0 {
		return 0
	}
	return refs[len(refs)-1].End()
}

// reader reads pages of plans.
type reader struct {
	store   *disk
	form    form
	buffers sync.Pool // *[]byte
}

type page struct {
	layout pagefile.Layout
	buffer *[]byte
	err    error
}

func (r *reader) page(ctx context.Context, p *plan, i int) (pg page) {
	if pg.layout, pg.err = r.form.layout(p, i, p.refs[i].Stored); pg.err != nil {
		return pg
	}
	pg.buffer, pg.err = r.read(ctx, p, i, pg.layout)
	return pg
}

// read reads the sections of a page that a layout has, each byte of which is checked. Without an error
// the caller gives the buffer back; after one, a read that hangs may still use it.
func (r *reader) read(ctx context.Context, p *plan, i int, layout pagefile.Layout) (*[]byte, error) {
	ref := p.refs[i]
	buf := r.take(layout.Size())
	return buf, r.store.Read(ctx, ref, p.tokens[ref.Start:ref.End()], layout, diskstore.Into{Rows: *buf})
}

func (r *reader) take(size int) *[]byte {
	buf, ok := r.buffers.Get().(*[]byte)
	if !ok || cap(*buf) < size {
		b := make([]byte, size)
		buf = &b
	}
	*buf = (*buf)[:size]
	return buf
}

// giveBack takes a buffer that nobody uses any more.
func (r *reader) giveBack(buf *[]byte) { r.buffers.Put(buf) }

// drop takes a page that nobody uses. A read that hangs still uses its buffer.
func (r *reader) drop(pg page) {
	if pg.err == nil {
		r.giveBack(pg.buffer)
	}
}
