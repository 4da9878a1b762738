package kvcache

import (
	"context"

	"github.com/kvtier/kvtier/telemetry/why"
)

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
