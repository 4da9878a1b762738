package llamatier

import (
	"slices"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/telemetry/why"
)

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

// end is the position after the first n pages.
func (p *plan) end(n int) int {
	return endOf(p.refs[:n])
}

// cut leaves n pages, without the beginning of an image.
func (p *plan) cut(n int) {
	p.refs, p.tokens = p.refs[:n], p.tokens[:p.end(n)]
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
