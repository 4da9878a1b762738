package reuse

import "time"

// Idle are the pages that wait for their next use: those of a tier, and those that left it.
type Idle struct{ pages [MostUses + 1][ages]int64 }

// Add adds a page.
func (i *Idle) Add(uses int, idle time.Duration) { i.pages[limit(uses)][ageOf(idle)]++ }

// Pages is the number of pages.
func (i *Idle) Pages() (n int64) {
	for _, by := range i.pages {
		for _, pages := range by {
			n += pages
		}
	}
	return n
}

// Worths are the worth of pages by their uses and idle times, in uses for each second of a page's room. The
// nil Worths, of a tier without a history, are all the same.
type Worths struct{ worth [MostUses + 1][ages]float64 }

// Of returns a page's worth.
func (w *Worths) Of(uses int, idle time.Duration) float64 {
	if w == nil {
		return 0
	}
	return w.worth[limit(uses)][ageOf(idle)]
}

// doubt is a number of pages that are added to those of each class and were not used again: of few pages
// little is known, and those of one prompt, which may be hundreds, are used again together.
const doubt = 256

// Worths returns the worth of pages by what was counted, and the pages that wait. known tells that the tier keeps
// the number of uses.
func (c Counts) Worths(idle *Idle, known bool) *Worths {
	p := pools{known: known}
	for u := range c.Began {
		share := c.shares(u, idle)
		for a := range ages {
			i := u*ages + a
			p.of[u][a], p.pools[i] = i, pool{index(share[a:], a), max(few, float64(idle.pages[u][a]))}
		}
	}
	for p.join() {
	}
	w := new(Worths)
	for u := range p.of {
		for a, i := range p.of[u] {
			w.worth[u][a] = p.pools[i].worth
		}
	}
	return w
}

// pool is the mean worth of the pages of some classes.
type pool struct{ worth, pages float64 }

// few is the weight of a class without pages.
const few = 1e-6

// pools join classes of which the one must not be worth less than the other, and is: all their pages are worth
// their mean then, and the last use decides. If one were worth as much as the other, pages that are of no use
// would keep out pages that are.
type pools struct {
	of    [MostUses + 1][ages]int // pool of each class
	pools [(MostUses + 1) * ages]pool
	known bool // as in Worths
}

// join joins the two pools that are furthest from their order, and reports whether there are any.
func (p *pools) join() bool {
	var most float64
	var from, to int
	for u := range p.of {
		best := -1 // of pages that were used less often, and are idle for at least as long
		for a := ages - 1; a >= 0; a-- {
			if u > 0 {
				best = p.better(best, p.of[u-1][a])
			}
			mine := p.of[u][a]
			if best >= 0 && p.pools[best].worth-p.pools[mine].worth > most {
				most, from, to = p.pools[best].worth-p.pools[mine].worth, best, mine
			}
			if u == MostUses || !p.known {
				best = p.better(best, mine)
			}
		}
	}
	if most == 0 {
		return false
	}
	a, b := p.pools[from], p.pools[to]
	pages := a.pages + b.pages
	p.pools[to] = pool{a.worth*(a.pages/pages) + b.worth*(b.pages/pages), pages}
	for u := range p.of {
		for a := range p.of[u] {
			if p.of[u][a] == from {
				p.of[u][a] = to
			}
		}
	}
	return true
}

// better returns the pool of the larger worth, where -1 is none.
func (p *pools) better(a, b int) int {
	if a >= 0 && p.pools[a].worth >= p.pools[b].worth {
		return a
	}
	return b
}

// shares returns, for pages of a number of uses, the share of those that reach each class of idle times that
// is used again within that class.
func (c Counts) shares(uses int, idle *Idle) (share [ages]float64) {
	again, waits := c.Again[uses], idle.pages[uses]
	older := make([]float64, ages+1) // pages known to have reached a class
	for a := ages - 1; a >= 0; a-- {
		older[a] = older[a+1] + float64(again[a]) + float64(waits[a])
	}
	reached := max(float64(c.Began[uses]), older[0]) // the rest was never used again, nor is it known any more
	for a := range ages {
		// Those that are in the class now have been through half of it, on average.
		if again[a] > 0 {
			share[a] = float64(again[a]) / (reached - float64(waits[a])/2 + doubt)
		}
		reached = max(reached-float64(again[a])-float64(waits[a]), older[a+1])
	}
	return share
}

// index returns the largest ratio of uses to seconds for pages that enter a class of idle times, of which
// shares are those of that class and the following ones.
func index(share []float64, class int) (best float64) {
	left, used, seconds := 1.0, 0.0, 0.0
	for i, s := range share {
		width := float64(int64(1) << (class + i))
		if class+i == 0 {
			width = 2 // the first class begins with 0
		}
		used += left * s
		seconds += left * (1 - s/2) * width
		left *= 1 - s
		best = max(best, used/seconds)
	}
	return best
}
