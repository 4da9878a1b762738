package kvcache

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// Rows is the interface that patches add to an Ollama cache of one kind: rows of cells, out
// and in. A row is one cell's K (or V) in one layer: contiguous, heads outer and head
// dimension inner, with any layout of the tensor.
type Rows interface {
	// RowLayers are the layers that have memory for both K and V, ascending.
	RowLayers() []int
	// RowBytes is the size of one row in bytes.
	RowBytes(layer int, value bool) (int, error)
	// ReadRows copies one row per cell to dst, in the order of cells. ReadRows and WriteRows
	// do not wait for the device, and leave unread outputs of a batch intact.
	ReadRows(layer int, value bool, cells []int32, dst []byte) error
	// WriteRows copies one row per cell from src, in the order of cells. Calls for different
	// cells may run at the same time.
	WriteRows(layer int, value bool, cells []int32, src []byte) error
	// SynchronizeRows waits until every batch handed to the backend is computed.
	SynchronizeRows()
	// BatchCells are the cells of the inputs of the batch built last.
	BatchCells() []int32
	// RowWindow returns two counts of positions before a batch's first: window, to which the
	// batch attends, and memory, which the cache keeps when the batch is built.
	// math.MaxInt32 stands for all positions.
	RowWindow() (window, memory int32)
	// ReserveCells takes free cells for positions [begin, end) of a sequence: preferred
	// cells where they are free, otherwise the lowest. A cache that keeps memory positions
	// first frees the cells of older positions.
	ReserveCells(seq int, begin, end int32, preferred []int32) ([]int32, error)
	// ShiftRows rotates K of cells by offset positions with the model's own function; the
	// error is upstream's ErrNotSupported in a model without a shift. No batch may be
	// computing, and the outputs of the last batch must have been read.
	ShiftRows(cells []int32, offset int32) error
	// Remove is upstream's Remove, for this cache alone.
	Remove(seq int, begin, end int32) error
}

// everything is RowWindow's value of a cache that keeps all positions.
const everything = math.MaxInt32

// group is one of a model's caches.
type group struct {
	Rows
	id             uint16 // its index in the model's own order
	beside         bool   // see [Beside.RowsBeside]
	window, memory int
}

// windowed reports whether the group drops positions.
func (g *group) windowed() bool { return g.memory != everything }

// oldest is the first position whose row a group keeps when a batch that begins at begin is
// built.
func (g *group) oldest(begin int) int { return max(0, begin-g.memory) }

// visible is the first position that a token at pos attends to.
func (g *group) visible(pos int) int { return max(0, pos-g.window) }

// cellNumbers is the section with the cell numbers of a page's rows in the group, int32 per
// token.
func (g *group) cellNumbers() pagefile.Section {
	return pagefile.Section{Group: g.id, Layer: cellNumbersLayer, Kind: pagefile.KindCell, RowBytes: 4}
}

// groupsOf describes caches. Caches that keep all positions come first: they need every page
// of a chain, caches with a window only a few.
func groupsOf(caches []Rows) []group {
	var all, windowed []group
	for i, rows := range caches {
		window, memory := rows.RowWindow()
		g := group{Rows: rows, id: uint16(i), window: int(window), memory: int(memory)}
		if g.windowed() {
			windowed = append(windowed, g)
		} else {
			all = append(all, g)
		}
	}
	return append(all, windowed...)
}

// cellNumbersLayer is the layer number of sections with cell numbers. The order of cells
// decides the order of additions in attention, and so the low bits of the result: a window
// restored into its old cells gives the same bits as before.
const cellNumbersLayer = math.MaxUint16

// geometry is the shape of one token's rows over all groups and layers. The geometry is the
// same for every page of a model and becomes the page's table of sections.
type geometry struct {
	sections []pagefile.Section
	of       []int // group of each section; len(groups) for state
}

// measure reads the geometry from the caches. The runner's worst-case reservation allocates
// K and V; upstream ignores its failure, and then the first batch allocates them. Until all
// layers have memory there is no geometry, and nothing can be restored.
func measure(groups []group, states States, layers int) (geometry, error) {
	var geo geometry
	present := 0
	for i := range groups {
		g := &groups[i]
		beside, ok := g.Rows.(Beside)
		g.beside = ok && beside.RowsBeside()
		of := g.RowLayers()
		present += len(of)
		for _, layer := range of {
			for _, kind := range []pagefile.Kind{pagefile.KindK, pagefile.KindV} {
				n, err := g.RowBytes(layer, kind == pagefile.KindV)
				if err != nil {
					return geometry{}, fmt.Errorf("size of a row: %w", err)
				}
				geo.add(i, pagefile.Section{Group: g.id, Layer: uint16(layer), Kind: kind, RowBytes: uint32(n)})
			}
		}
		if g.windowed() {
			geo.add(i, g.cellNumbers())
		}
	}
	if states != nil {
		n, err := geo.addStates(states, len(groups))
		if err != nil {
			return geometry{}, fmt.Errorf("size of a state: %w", err)
		}
		present += n
	}
	if present != layers {
		return geometry{}, fmt.Errorf("%d of %d layers have memory", present, layers)
	}
	return geo, nil
}

// known reports whether the shape was measured.
func (geo *geometry) known() bool { return geo.sections != nil }

func (geo *geometry) add(group int, s pagefile.Section) {
	geo.sections = append(geo.sections, s)
	geo.of = append(geo.of, group)
}

// any reports whether a wanted group has a section.
func (geo *geometry) any(wanted func(group int) bool) bool {
	return slices.ContainsFunc(geo.of, wanted)
}

// layout lays out a page of tokens tokens with the sections of the wanted groups.
func (geo *geometry) layout(tokens int, wanted func(group int) bool) (pagefile.Layout, error) {
	var sections []pagefile.Section
	for i, s := range geo.sections {
		if wanted(geo.of[i]) {
			sections = append(sections, s)
		}
	}
	return pagefile.NewLayout(sections, tokens)
}

// hasAll reports whether a page has the rows of all groups.
func (geo *geometry) hasAll(layout pagefile.Layout) bool {
	rows := func(sections []pagefile.Section) (n int) {
		for _, s := range sections {
			if s.Kind.PerToken() {
				n++
			}
		}
		return n
	}
	return rows(layout.Sections()) == rows(geo.sections)
}

// groupOf is the index in groups of a section's group.
func groupOf(groups []group, s pagefile.Section) int {
	for i := range groups {
		if groups[i].id == s.Group {
			return i
		}
	}
	return -1 // no layout of ours has such a section
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
