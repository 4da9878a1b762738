package kvcache

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/rates"
)

// plan lists the pages that a restore reads: they cover positions [base, end), and group g
// gets the rows from begin[g] on.
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
	return int(ref.Start)+ref.Tokens > p.begin[group]
}

// pageEnd is the position after the last row that a page contributes.
func (p *plan) pageEnd(page int) int {
	ref := p.refs[page]
	return min(int(ref.Start)+ref.Tokens, p.end)
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

// take adds pages to the plan, up to a limit.
func (p *plan) take(refs []diskstore.Ref, limit int) {
	for _, ref := range refs {
		ref.Ahead = p.ahead
		if end := min(int(ref.Start)+ref.Tokens, limit); end > max(p.base, int(ref.Start)) {
			p.refs, p.end = append(p.refs, ref), end
		}
	}
}

// trim ends a plan at the last position that is outside every span and whose window is
// stored for every group.
func (f *finder) trim(ctx context.Context, p *plan) {
	known := make(map[pagefile.Key]map[int][]int32)
	for {
		p.end = p.prompt.boundary(p.end)
		for len(p.refs) > 0 && int(p.refs[len(p.refs)-1].Start) >= p.end {
			p.refs = p.refs[:len(p.refs)-1]
		}
		if p.end <= p.base {
			return
		}
		if f.beginGroups(ctx, p, known) {
			p.pass(&f.caches.geometry)
			return
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

// beginGroups fills in where each group begins and the cells its rows had. When a page
// lacks rows that are needed at the plan's end, beginGroups moves the end before that page
// and reports false. known keeps the cell numbers of pages, so that each page is read once.
func (f *finder) beginGroups(ctx context.Context, p *plan, known map[pagefile.Key]map[int][]int32) bool {
	p.begin = make([]int, len(f.caches.groups))
	p.preferred = make([][]int32, len(f.caches.groups))
	for g := range f.caches.groups {
		group := &f.caches.groups[g]
		p.begin[g] = max(p.base, group.oldest(p.end))
		if !group.windowed() {
			continue
		}
		var cells []int32
		for i := len(p.refs) - 1; i >= 0 && p.needs(i, g); i-- {
			ref := p.refs[i]
			if known[ref.Key] == nil {
				known[ref.Key] = f.cellNumbersOf(ctx, p, i)
			}
			had, ok := known[ref.Key][g]
			if !ok && p.pageEnd(i) > group.visible(p.end) {
				p.end = int(ref.Start)
				return false
			}
			if !ok {
				p.begin[g] = p.pageEnd(i)
				break
			}
			from, to := max(p.begin[g], int(ref.Start))-int(ref.Start), p.pageEnd(i)-int(ref.Start)
			cells = append(had[from:to:to], cells...)
		}
		p.preferred[g] = cells
	}
	return true
}

// cellNumbersOf reads the cell numbers that a page's rows had, by group. The page has no
// rows of a group that is missing in the result.
func (f *finder) cellNumbersOf(ctx context.Context, p *plan, page int) map[int][]int32 {
	ref := p.refs[page]
	numbers := make(map[int][]int32)
	for g := range f.caches.groups {
		if !f.caches.groups[g].windowed() {
			continue
		}
		layout, err := pagefile.NewLayout([]pagefile.Section{f.caches.groups[g].cellNumbers()}, ref.Stored)
		if err != nil {
			continue // cannot happen for a page that was found
		}
		buf := make([]byte, layout.Size())
		err = f.store.Read(ctx, ref, p.prompt.tokens[ref.Start:int(ref.Start)+ref.Tokens], layout, buf)
		if errors.Is(err, pagefile.ErrMismatch) {
			f.thin.add(ref.Key)
		}
		f.store.noteRead(ref, err)
		if err != nil {
			continue
		}
		rows := layout.Rows(buf, 0)
		cells := make([]int32, ref.Stored)
		for i := range cells {
			cells[i] = int32(binary.LittleEndian.Uint32(rows[4*i:]))
		}
		numbers[g] = cells
	}
	return numbers
}
