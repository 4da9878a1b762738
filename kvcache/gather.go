package kvcache

import (
	"encoding/binary"
	"fmt"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// pageRows are the rows of a page, and the cells of each group that have them.
type pageRows struct {
	layout  pagefile.Layout
	payload []byte
	cells   [][]int32
}

// destination is where a page's rows go: for group g, the rows from row from[g] on go to cells[g].
type destination struct {
	from  []int
	cells [][]int32
}

// gather copies a page's rows in the wanted groups, and state, into its payload.
func gather(groups []group, states States, page pageRows, wanted func(group int) bool) error {
	layout, cells := page.layout, page.cells
	for i, s := range layout.Sections() {
		rows := layout.Rows(page.payload, i)
		if !s.Kind.PerToken() {
			if err := states.ReadState(int(s.Layer), s.Kind == pagefile.KindState, rows); err != nil {
				return fmt.Errorf("copy the state of layer %d out: %w", s.Layer, err)
			}
			continue
		}
		g := groupOf(groups, s)
		if !wanted(g) {
			continue
		}
		if s.Kind == pagefile.KindCell {
			for j, cell := range cells[g] {
				binary.LittleEndian.PutUint32(rows[4*j:], uint32(cell))
			}
			continue
		}
		if err := groups[g].ReadRows(int(s.Layer), s.Kind == pagefile.KindV, cells[g], rows); err != nil {
			return fmt.Errorf("copy rows of layer %d out: %w", s.Layer, err)
		}
	}
	return nil
}

// scatter copies rows of one section of a page into cells. State is copied whole.
func scatter(groups []group, states States, s pagefile.Section, rows []byte, to destination) error {
	if !s.Kind.PerToken() {
		if err := states.WriteState(int(s.Layer), s.Kind == pagefile.KindState, rows); err != nil {
			return fmt.Errorf("copy the state of layer %d in: %w", s.Layer, err)
		}
		return nil
	}
	g := groupOf(groups, s)
	if s.Kind == pagefile.KindCell || len(to.cells[g]) == 0 {
		return nil
	}
	n, from, cells := int(s.RowBytes), to.from[g], to.cells[g]
	if err := groups[g].WriteRows(int(s.Layer), s.Kind == pagefile.KindV, cells, rows[from*n:(from+len(cells))*n]); err != nil {
		return fmt.Errorf("copy rows of layer %d in: %w", s.Layer, err)
	}
	return nil
}
