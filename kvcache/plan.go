package kvcache

import (
	"slices"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/engine"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
)

// plan lists the pages of a restore: of positions [base, end), group g gets the rows from begin[g] on.
type plan struct {
	seq       int
	prompt    prompt
	refs      []diskstore.Ref
	passed    []diskstore.Ref // stored pages before refs, not read: no group needs a row of them
	base, end int
	begin     []int
	state     bool      // the last page brings the state after it
	preferred [][]int32 // cells of positions [begin, end) of each group that reuses cells
	cells     [][]int32 // the cells reserved for these positions
	free      *idleJob  // done when no earlier batch uses the cells any more
	ahead     bool      // no request wants the rows yet

	// by is the distance that rows move. Positions of the plan are those of the stored
	// pages; the row stored at position i goes to position i+by of the slot.
	by int
}

// wanted is the slot's position of the row stored at a position.
func (p *plan) wanted(position int) int { return position + p.by }

// needs reports whether a group gets rows of a page. Group len(begin) stands for state.
func (p *plan) needs(page, group int) bool {
	if group == len(p.begin) {
		return p.state && page == len(p.refs)-1
	}
	ref := p.refs[page]
	return ref.End() > p.begin[group]
}

// pageEnd is the position after the last row that a page contributes.
func (p *plan) pageEnd(page int) int {
	ref := p.refs[page]
	return min(ref.End(), p.end)
}

// layout lays out the sections of a page that the plan reads.
func (p *plan) layout(geo *geometry, page int) (pagefile.Layout, error) {
	return geo.layout(p.refs[page].Stored, func(group int) bool { return p.needs(page, group) })
}

// bytes estimates how many bytes of a page's file are read, and in which form. A page without
// state or without a window may seem smaller than its rows.
func (p *plan) bytes(geo *geometry, page int) (int64, rates.Form) {
	ref := p.refs[page]
	wanted, err := p.layout(geo, page)
	all, err2 := geo.layout(ref.Stored, func(int) bool { return true })
	if err != nil || err2 != nil {
		return ref.Bytes, rates.Whole
	}
	return int64(float64(ref.Bytes) * float64(wanted.Size()) / float64(all.Size())), rates.FormOf(ref.Bytes, int64(all.Size()))
}

// destination returns the cells of a page's rows. Cells must be reserved.
func (p *plan) destination(page int) destination {
	d := destination{make([]int, len(p.cells)), make([][]int32, len(p.cells))}
	start, end := int(p.refs[page].Start), p.pageEnd(page)
	for g := range p.cells {
		if begin := max(start, p.begin[g]); begin < end {
			d.from[g], d.cells[g] = begin-start, p.cells[g][begin-p.begin[g]:end-p.begin[g]]
		}
	}
	return d
}

// cellsFrom returns the plan's cells of the positions from held on. Attention without flash
// attention multiplies the rows of free cells by zero, so that NaN must not stay in them.
func (p *plan) cellsFrom(held int) [][]int32 {
	cells := make([][]int32, len(p.cells))
	for g := range cells {
		cells[g] = p.cells[g][min(len(p.cells[g]), max(0, held-p.begin[g])):]
	}
	return cells
}

// lossyFrom is the position of the plan's first row from a lossy page; the plan's end without one.
func (p *plan) lossyFrom() int {
	for _, ref := range p.refs {
		if ref.Lossy {
			return max(p.base, int(ref.Start))
		}
	}
	return p.end
}

// addTo notes where positions [base, held) of a plan came from. Pages that were passed over
// count with their tier: no row of them is needed.
func (p *plan) addTo(o engine.Origins, held int) engine.Origins {
	o = o.Cut(p.wanted(p.base))
	if p.by != 0 {
		return o.Add(p.wanted(held), telemetry.PlaceShifted)
	}
	return o.AddPages(slices.Concat(p.passed, p.refs), held)
}

// take adds pages to the plan, up to a limit.
func (p *plan) take(refs []diskstore.Ref, limit int) {
	for _, ref := range refs {
		ref.Ahead = p.ahead
		if end := min(ref.End(), limit); end > max(p.base, int(ref.Start)) {
			p.refs, p.end = append(p.refs, ref), end
		}
	}
}

// pass leaves out leading pages of which no row is needed: in a model whose layers all have
// a window, pages before every window.
func (p *plan) pass(geo *geometry) {
	wanted := func(page int) bool {
		return geo.any(func(group int) bool { return p.needs(page, group) })
	}
	n := 0
	for n < len(p.refs) && !wanted(n) {
		n++
	}
	p.passed, p.refs = append(p.passed, p.refs[:n]...), p.refs[n:]
}

// costs describes a plan's pages to package rates.
func (p *plan) costs(c *caches) rates.Chain {
	of := rates.Chain{Base: p.wanted(p.base), Pages: make([]rates.Page, len(p.refs)), Indivisible: !c.divisible()}
	for i, ref := range p.refs {
		begin := int(ref.Start)
		if p.by != 0 { // of the first page only the run's part
			begin = max(begin, p.base)
		}
		bytes, form := p.bytes(&c.geometry, i)
		of.Pages[i] = rates.Page{
			Start: p.wanted(begin), Tokens: p.pageEnd(i) - begin, Bytes: bytes, Form: form, Tier: ref.Tier,
		}
	}
	return of
}

// begun describes the plan's pages as costs does, for a restore that has begun: one of a window or a
// state that is given up leaves nothing in the slot.
func (p *plan) begun(c *caches) rates.Chain {
	of := p.costs(c)
	if of.Indivisible {
		of.Base = 0
	}
	return of
}
