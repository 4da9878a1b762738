package kvcache

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

// lossyFrom is the position of the plan's first row from a lossy page; the plan's end without one.
func (p *plan) lossyFrom() int {
	for _, ref := range p.refs {
		if ref.Lossy {
			return max(p.base, int(ref.Start))
		}
	}
	return p.end
}
