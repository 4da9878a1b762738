package kvcache

import (
	"math"
	"os"

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

// Beside is the interface of a cache whose rows can be copied out while a batch computes.
type Beside interface {
	// RowsBeside reports whether ReadRows copies from a device, in transfers of neighbouring
	// rows that neither use its computing nor wait for it. RowsBeside is false for rows in
	// host memory: copying them would take processors from a batch.
	RowsBeside() bool
	// MarkRows returns a function that waits until every batch handed to the backend before the call of
	// MarkRows is computed. The function is called at most once, by any goroutine, and frees the mark.
	MarkRows() (wait func())
}

// RowPlacer is implemented by caches that move rows out of memory page by page (paged attention). Rows
// known to be in a file already need not be written to the spill file to make room.
type RowPlacer interface {
	// PlaceRows says that the rows of cells, just written, are also in a file: layer layers[i]'s K from
	// keyOffsets[i] on and its V from valueOffsets[i] on, one row after the other in the order of
	// cells. Both copies are equal until a row changes in memory; the file never changes. The caller
	// owns the file: an implementation that needs the file after the call duplicates the descriptor.
	//
	// After an error the rows are in memory only. The runner's lock is not held, as in WriteRows.
	PlaceRows(cells []int32, file *os.File, layers []int, keyOffsets, valueOffsets []int64) error
}

// RowHolder is implemented by caches whose rows leave memory page by page.
type RowHolder interface {
	// HeldBytes are the bytes of the rows of cells, in all layers, that are in memory now; ok is false
	// where all of them are. HeldBytes may be called at any time, by any goroutine.
	HeldBytes(cells []int32) (bytes int64, ok bool)
}

// States is the interface that patches add to an Ollama cache with recurrent layers. State
// sums up all tokens of the cache's one sequence and exists only after the last computed
// token. There are two kinds: of convolutions and of recurrent layers.
type States interface {
	// StateLayers are the layers with a state of a kind that has memory, ascending.
	StateLayers(recurrent bool) []int
	// StateBytes is the size of a layer's state in bytes.
	StateBytes(layer int, recurrent bool) (int, error)
	// ReadState copies a layer's state to dst.
	ReadState(layer int, recurrent bool, dst []byte) error
	// WriteState copies a layer's state from src.
	WriteState(layer int, recurrent bool, src []byte) error
	// HasState reports whether a sequence's next batch has a state to go on from.
	HasState(seq int) bool
	// BeginState makes room for a sequence's state. WriteState follows.
	BeginState(seq int) error
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

// oldest is the first position whose row a group keeps when a batch that begins at begin is built.
func (g *group) oldest(begin int) int { return max(0, begin-g.memory) }

// visible is the first position that a token at pos attends to.
func (g *group) visible(pos int) int { return max(0, pos-g.window) }

// later reports whether a group's rows are copied beside batches.
func (g *group) later() bool { return g.beside && !g.windowed() }

// cellNumbers is the section with the cell numbers of a page's rows in the group, int32 per token.
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

// groupOf is the index in groups of a section's group.
func groupOf(groups []group, s pagefile.Section) int {
	for i := range groups {
		if groups[i].id == s.Group {
			return i
		}
	}
	return -1 // no layout of ours has such a section
}
