package pager

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"unsafe"
)

// A Group is the layers that share cells, as those of one cache do, and their pages: which have rows,
// which are in files, and how many have room. Callers number layers as the model does.
//
// Layers are added, batches described and rooms made by one goroutine at a time. Rows may be
// read, written, placed and turned beside that.
type Group struct {
	pager  *Pager
	number int
	layers map[int]groupLayer

	// desc describes the current batch. base is the pager's copy of it, made when the first
	// layer needs it: before the first reservation the pager knows no layers. batch is base,
	// or derived from it by Except.
	desc        BatchDesc
	except      []bool
	base, batch *Batch

	pages int // reserved, from the first on

	mu sync.Mutex // guards the fields below

	// used are the pages with rows, and the last forward pass that had a cell of theirs in use.
	used   map[int]uint64
	passes uint64

	// placed are the pages whose first rows are in files.
	placed map[int]*placedPage
}

type groupLayer struct {
	id int
	Layer
}

// inFlight is how many forward passes may be built and not yet computed: one on the device,
// one handed to it, and the one that is being built.
const inFlight = 3

// NewGroup is a group of a pager. Groups of a pager have different numbers, 0 .. 15.
func NewGroup(p *Pager, number int) *Group {
	return &Group{
		pager: p, number: number,
		layers: make(map[int]groupLayer), used: make(map[int]uint64), placed: make(map[int]*placedPage),
	}
}

// Close closes files of pages that were placed in part. The pager stays.
func (g *Group) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for page := range g.placed {
		g.forgetPlaceLocked(page)
	}
}

// AddLayer adds a layer before the pager starts. A layer that the op cannot compute is refused with a
// NotPagedError, as far as that is known without the query's heads. The group of desc does not count.
func (g *Group) AddLayer(layer int, desc Layer) error {
	desc.Group = g.number
	if err := desc.pageable(desc.KVHeads); err != nil {
		return err // Op asks again, with the query's heads
	}
	id, err := g.pager.AddLayer(desc)
	if err != nil {
		return err
	}
	g.layers[layer] = groupLayer{id, desc}
	return nil
}

// pageable returns a NotPagedError if attention with some query heads cannot be computed on a layer.
func (l Layer) pageable(heads int) error {
	if err := Supported(l, heads); err != nil {
		return NotPaged(err.Error(), SmallerContext)
	}
	return nil
}

// Layers are the layers so far, ascending.
func (g *Group) Layers() []int { return slices.Sorted(maps.Keys(g.layers)) }

// Dims are the elements of a head's K and V in a layer; ok is false for an unknown layer.
func (g *Group) Dims(layer int) (key, value int, ok bool) {
	l, ok := g.layers[layer]
	return l.KeyDim, l.ValueDim, ok
}

// Layer describes a layer that was added.
func (g *Group) Layer(layer int) Layer { return g.layers[layer].Layer }

// PageBytes is the size of a page of a layer that was added, in bytes.
func (g *Group) PageBytes(layer int) uint64 { return g.pager.PageBytes(g.layers[layer].id) }

// BoundsBytes is the memory by which a block of a layer that was added is chosen, in bytes.
func (g *Group) BoundsBytes(layer int) uint64 { return g.pager.BoundsBytes(g.layers[layer].id) }

// Begin describes the cells for the ops of a forward pass. The lists of d must stay as they
// are until the next one. The group of d does not count.
func (g *Group) Begin(d BatchDesc) {
	g.desc = d
	g.desc.Group = g.number
	g.base, g.batch, g.except = nil, nil, nil
}

// Except makes the ops that follow let some queries of the batch see later cells, too.
func (g *Group) Except(queries []int) {
	g.batch, g.except = nil, nil
	if len(queries) == 0 {
		return
	}
	g.except = make([]bool, len(g.desc.QueryPos))
	for _, i := range queries {
		g.except[i] = true
	}
}

// Op makes the attention of a layer in the current batch, as [Batch.Op] does.
func (g *Group) Op(layer, heads int, scale float64) (unsafe.Pointer, error) {
	l, ok := g.layers[layer]
	if !ok {
		return nil, errors.New("it has no K/V in pages")
	}
	if err := l.pageable(heads); err != nil {
		return nil, err
	}
	batch, err := g.Batch()
	if err != nil {
		return nil, err
	}
	return batch.Op(Params{Layer: l.id, Heads: heads, Scale: float32(scale)})
}

// Batch is the batch that ops of this forward pass belong to.
func (g *Group) Batch() (*Batch, error) {
	var err error
	if g.base == nil {
		if g.base, err = g.pager.Begin(g.desc); err != nil {
			return nil, err
		}
	}
	if g.batch == nil {
		g.batch, err = g.base.Except(g.except)
	}
	return g.batch, err
}

// Wrote begins a forward pass, which puts rows into cells.
func (g *Group) Wrote(cells []int32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.passes++
	for _, cell := range cells {
		page, _ := g.pageOf(cell)
		g.used[page] = g.passes
		g.forgetPlaceLocked(page)
	}
}

// Sweep gives back pages none of whose cells is used, once no forward pass in flight may
// still attend to them: a sliding window moves on when the next pass is built. inUse reports
// whether any of the cells [first, end) is in use; end may be past the last cell.
func (g *Group) Sweep(inUse func(first, end int) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	size := g.pager.PageCells()
	for page, pass := range g.used {
		if inUse(page*size, (page+1)*size) {
			g.used[page] = g.passes
			continue
		}
		if g.passes < pass+inFlight {
			continue
		}
		g.forgetPlaceLocked(page)
		g.pager.Drop(g.number, page)
		delete(g.used, page)
	}
}

// HeldBytes are the bytes of the rows of cells, in all layers, that are in memory now. HeldBytes may be
// called at any time, by any goroutine.
func (g *Group) HeldBytes(cells []int32) (sum int64) {
	if len(cells) == 0 {
		return 0
	}
	last, _ := g.pageOf(slices.Max(cells))
	ofCell := make([]uint64, last+1)
	g.pager.Held(g.number, ofCell)
	for _, cell := range cells {
		page, _ := g.pageOf(cell)
		sum += int64(ofCell[page])
	}
	return sum
}

// Used is the number of pages with rows.
func (g *Group) Used() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.used)
}

// Turn turns K of cells, page by page and when a page is next needed. planes are those of each layer.
func (g *Group) Turn(cells []int32, planes map[int][]Plane) error {
	pages := make(map[int][]uint64)
	for _, cell := range cells {
		page, n := g.pageOf(cell)
		if pages[page] == nil {
			pages[page] = make([]uint64, (g.pager.PageCells()+63)/64)
		}
		pages[page][n/64] |= 1 << (n % 64)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for page, bits := range pages {
		g.forgetPlaceLocked(page) // files have its rows as they were
		for layer, l := range g.layers {
			if err := g.pager.Rotate(l.id, page, bits, planes[layer]); err != nil {
				return err
			}
		}
	}
	return nil
}

// pageOf is the page of a cell, and the cell's number in it.
func (g *Group) pageOf(cell int32) (page, n int) {
	return int(cell) / g.pager.PageCells(), int(cell) % g.pager.PageCells()
}

// layer is a layer that must be known.
func (g *Group) layer(layer int) (groupLayer, error) {
	l, ok := g.layers[layer]
	if !ok {
		return l, fmt.Errorf("layer %d has no K/V", layer)
	}
	return l, nil
}

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
