package kvcache

import (
	"fmt"

	ollama "github.com/ollama/ollama/kvcache"

	"github.com/kvtier/kvtier/diskstore"
)

// Rows is what a patched Ollama cache offers beside upstream's interface: the rows of its
// cells, out and in. A row is what one cell holds of K (or V) in one layer, contiguous,
// heads outer and head dimension inner, whatever the tensor's layout.
type Rows interface {
	ollama.Cache

	// RowLayers are the layers that have memory for both K and V, ascending.
	RowLayers() []int
	// RowBytes is the size of one row.
	RowBytes(layer int, value bool) (int, error)
	// ReadRows copies one row per cell to dst, in the order given.
	ReadRows(layer int, value bool, cells []int32, dst []byte) error
	// WriteRows copies one row per cell from src.
	WriteRows(layer int, value bool, cells []int32, src []byte) error
	// SynchronizeRows waits until every batch handed to the backend is computed.
	SynchronizeRows()
	// BatchCells are the cells of the inputs of the batch built last.
	BatchCells() []int32
	// ReserveCells takes free cells for positions [begin, end) of a sequence.
	ReserveCells(seq int, begin, end int32) ([]int32, error)
}

// geometry is the shape of one token's rows over all layers. It is the same for every
// page of a model and becomes the page's table of sections.
type geometry struct {
	sections []diskstore.Section
}

// measure reads the geometry off the cache. Memory for K and V is made by the runner's
// worst-case reservation, whose failure upstream ignores, or else by the first batch: until
// all layers have theirs there is no geometry, and nothing can be restored.
func measure(rows Rows, layers int) (geometry, error) {
	present := rows.RowLayers()
	if len(present) != layers {
		return geometry{}, fmt.Errorf("%d of %d layers have K/V memory", len(present), layers)
	}
	var g geometry
	for _, layer := range present {
		for _, kind := range []diskstore.Kind{diskstore.KindK, diskstore.KindV} {
			n, err := rows.RowBytes(layer, kind == diskstore.KindV)
			if err != nil {
				return geometry{}, fmt.Errorf("size of a row: %w", err)
			}
			g.sections = append(g.sections, diskstore.Section{Layer: uint16(layer), Kind: kind, RowBytes: uint32(n)})
		}
	}
	return g, nil
}

// gather copies the rows of cells into a page payload laid out by layout.
func (g geometry) gather(rows Rows, layout diskstore.Layout, cells []int32, payload []byte) error {
	for i, s := range layout.Sections() {
		if err := rows.ReadRows(int(s.Layer), s.Kind == diskstore.KindV, cells, layout.Rows(payload, i)); err != nil {
			return fmt.Errorf("copy rows of layer %d out: %w", s.Layer, err)
		}
	}
	return nil
}

// scatter copies the rows [from, from+len(cells)) of a page payload into cells.
func (g geometry) scatter(rows Rows, layout diskstore.Layout, payload []byte, from int, cells []int32) error {
	for i, s := range layout.Sections() {
		n := int(s.RowBytes)
		src := layout.Rows(payload, i)[from*n : (from+len(cells))*n]
		if err := rows.WriteRows(int(s.Layer), s.Kind == diskstore.KindV, cells, src); err != nil {
			return fmt.Errorf("copy rows of layer %d in: %w", s.Layer, err)
		}
	}
	return nil
}
