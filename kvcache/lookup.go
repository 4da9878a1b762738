package kvcache

import (
	"context"
	"slices"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/telemetry/why"
)

// lookUp looks pages up in the store, without the runner's lock, and plans their restore.
// lookUp reports whether there are any.
type lookUp func(ctx context.Context) (plan, bool)

// chain returns a lookup of the pages that follow from the prompt's beginning, up to a
// limit, and that are worth reading.
func (r *restoring) chain(limit int) lookUp {
	p, have := plan{seq: r.seq, prompt: r.prompt, ahead: r.ahead}, r.result.Held
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.slots.at(r.seq)
	p.base = s.restoreBase(have, &p.prompt, r.caches.divisible())
	parent, start := s.knownPrefix(p.base)
	if !r.sealer.ready() || limit <= p.base {
		return nil
	}
	return func(ctx context.Context) (plan, bool) {
		found, err := r.find.stored(ctx, &p, have, limit, parent, start)
		r.lookedUp(&p, found.Exact, limit, err, parent, start)
		r.nowFound(r.seq, found.Exact)
		for _, page := range found.Unread {
			r.find.store.NoteRead(page.Ref, page.Err)
		}
		mixed := p
		if p.take(found.Exact, limit); found.Mixed != nil {
			mixed.take(found.Mixed, limit)
			r.lookedUp(&mixed, mixed.refs, limit, err, parent, start)
			if r.worth(ctx, &mixed, max(have, p.end, p.base)+r.slots.size) {
				return mixed, true
			}
		}
		least := max(have, p.base+1) // rows of the slot are read again only if they are not exact
		if r.caches.stateful() {
			p.refs, p.end, p.state = nil, p.base, found.State != nil
			p.take(found.State, limit)
			least = max(least, p.end) // no other position has a state
		}
		return p, r.worth(ctx, &p, least)
	}
}

// lookedUp notes the result of looking the prompt's pages up.
func (r *restoring) lookedUp(p *plan, refs []diskstore.Ref, limit int, err error, parent pagefile.Key, start int) {
	if r.why.Recents == nil || r.ahead {
		return
	}
	f := found{end: p.base, slow: engine.SlowTier(refs, err)}
	for _, ref := range refs {
		end := ref.End()
		f.end, f.parted = max(f.end, min(end, limit)), ref.Tokens < ref.Stored && end < limit
	}
	f.queued = r.queue.any(extends(&p.prompt, r.slots.size, f.end, parent, start))
	r.why.lookedUp(r.seq, f)
}

// nowFound notes the full pages that a look-up for a slot's request has found. A page in a
// remote tier does not count: stored near by, it is quicker to read.
func (r *restorer) nowFound(seq int, refs []diskstore.Ref) {
	found := make(map[pagefile.Key]bool)
	for _, ref := range refs {
		if ref.Whole() && ref.Tier != tier.Remote {
			found[ref.Key] = true
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.slots.at(seq)
	s.found = found
	s.nowFar(refs)
}

// notFound notes that pages which a look-up has found are not stored whole.
func (r *restorer) notFound(seq int, refs []diskstore.Ref) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ref := range refs {
		delete(r.slots.at(seq).found, ref.Key)
	}
}

// recheck asks the store for the pages that the slot counts as stored: the store may have
// evicted or set aside some. Missing pages are stored again from the slot's rows.
func (r *restoring) recheck(ctx context.Context) {
	r.mu.Lock()
	s := r.slots.at(r.seq)
	s.found = nil // this request's look-up may find less, or there may be none
	r.sealer.noteDropped()
	keys := slices.Clone(s.keys[:s.lastStored()])
	tokens := slices.Clone(s.tokens[:len(keys)*r.slots.size])
	media := pagefile.MediaWithin(s.media, 0, len(tokens))
	r.mu.Unlock()
	if len(keys) == 0 {
		return
	}
	var gone []int
	var err error
	r.unlocked(func() { gone, err = r.find.holes(ctx, keys, tokens, media) })
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, page := range gone {
		s.lost(keys[page])
	}
}

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

// worth shortens a plan to an end at which the sequence can go on and up to which reading
// pays. worth reports whether the end is still at least `least`.
func (r *restoring) worth(ctx context.Context, p *plan, least int) bool {
	r.find.trim(ctx, p)
	if p.end < least || ctx.Err() != nil {
		return false
	}
	if n := r.gate.Pays(p.costs(r.caches)); n < len(p.refs) {
		r.skip(p, n)
		if n == 0 {
			return false
		}
		p.refs, p.end = p.refs[:n], p.pageEnd(n-1)
		r.find.trim(ctx, p)
	}
	return p.end >= least
}

// skip notes that the plan's pages from index `from` on are computed because reading takes longer.
func (r *restoring) skip(p *plan, from int) {
	r.why.unread(p, from, why.UnreadQuicker)
	var probe func(ctx context.Context, page int) error
	if !p.ahead {
		probe = r.reader.dropping(p)
	}
	r.gate.Skip(r.running, p.costs(r.caches), from, probe)
}
