package kvcache

import (
	"slices"

	"github.com/kvtier/kvtier/diskstore/tier"
)

// publish adds positions [base, held) of a plan, which follow from the prompt's beginning, to the slot,
// and marks the slot's stored pages. reaches: images attend to text behind them.
func (s *slot) publish(p *plan, held int, groups []group, reaches bool) {
	s.truncate(p.base)
	s.trimKeys()
	if len(s.tokens) < p.base {
		s.broken = true
		return
	}
	s.broken, s.lossy = false, false
	if p.state && held == p.end {
		s.stateAt, s.state = held, saved{tokens: held}
	}
	s.tokens = append(s.tokens, p.prompt.tokens[p.base:held]...)
	for _, m := range p.prompt.media {
		if at := int(m.Offset); at >= p.base && at < held {
			s.media = append(s.media, m)
			if reaches && m.Reach() == 0 { // cannot happen: such an image's page is not found
				s.foreign = min(s.foreign, at)
			}
		}
	}
	for g := range s.cells {
		s.publishCells(p, held, g, groups[g].oldest(p.end))
	}
	for _, ref := range slices.Concat(p.passed, p.refs) { // each ends after base
		full := ref.Whole() && int(ref.Start)+ref.Tokens <= held
		if full && int(ref.Start) == len(s.keys)*s.size && ref.Parent == s.parent(len(s.keys)) {
			state := pageStored
			if !s.found[ref.Key] && ref.Tier != tier.Remote { // another request could not read it since
				state = pageNew
			}
			s.keys, s.pages = append(s.keys, ref.Key), append(s.pages, state)
		}
	}
	s.extendKeys()
	if last := len(p.refs) - 1; held == p.end && last >= 0 && (!p.refs[last].Whole() || held < int(p.refs[last].Start)+p.refs[last].Tokens) {
		s.tail = saved{tokens: held} // stored already, perhaps as the beginning of a longer page
	}
}

// publishCells notes group g's cells of positions [base, held). Positions before oldest, which the
// group would have dropped, have no cell.
func (s *slot) publishCells(p *plan, held, g, oldest int) {
	if p.begin[g] > p.base {
		s.from[g] = min(p.begin[g], held)
	}
	s.from[g] = max(s.from[g], oldest)
	for len(s.cells[g]) < min(p.begin[g], held) {
		s.cells[g] = append(s.cells[g], -1)
	}
	s.cells[g] = append(s.cells[g], p.cells[g][:held-len(s.cells[g])]...)
}
