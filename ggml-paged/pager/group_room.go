package pager

import "slices"

// Room for cells. A cache takes its lowest free cells, so that cells [0, n) are enough for n
// of them: a group reserves its pages from the first on, and as long as no more cells are in
// use than those pages have, there is room for every row.

// Room is how many cells can be in use, the lowest ones.
func (g *Group) Room() int { return g.pages * g.pager.PageCells() }

// A Want is a number of cells that shall be able to be in use in a group.
type Want struct {
	Group *Group
	Cells int
	First bool // no prompt does without, as with a sliding window
}

// MakeRoom makes room for cells in groups of a pager, and starts the pager if need be. An error names
// the room that is lacking. A prompt without room must leave room for shorter ones, and reserved pages
// stay reserved: wants that come first are met first, and of the others one page of each group in turn.
func (p *Pager) MakeRoom(wants []Want) error {
	if err := p.Start(); err != nil {
		return err
	}
	missing := make([]int, len(wants)) // pages
	for i, want := range wants {
		missing[i] = (want.Cells - want.Group.Room() + p.PageCells() - 1) / p.PageCells()
		if want.First && missing[i] > 0 {
			if err := want.Group.grow(missing[i]); err != nil {
				return err
			}
			missing[i] = 0
		}
	}
	for most := slices.Max(append(missing, 0)); most > 0; most-- {
		for i, want := range wants {
			if missing[i] < most {
				continue
			}
			if err := want.Group.grow(1); err != nil {
				return err
			}
			missing[i]--
		}
	}
	return nil
}

// grow reserves so many pages more.
func (g *Group) grow(pages int) error {
	pages += g.pages
	if err := g.pager.Reserve(g.number, pages); err != nil {
		return err
	}
	g.pages = pages
	return nil
}
