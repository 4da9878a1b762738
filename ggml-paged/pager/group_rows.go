package pager

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Rows are a layer's rows of K or V, for a store of rows. Rows of a cell lie in one piece: the
// methods ignore whether they are permuted.
type Rows struct {
	g     *Group
	layer groupLayer
	value bool
}

// Rows are the rows of K, or of V, of a layer.
func (g *Group) Rows(layer int, value bool) (Rows, error) {
	l, err := g.layer(layer)
	return Rows{g, l, value}, err
}

// RowBytes is the size of a row.
func (r Rows) RowBytes(bool) int {
	key, value := r.g.pager.RowBytes(r.layer.id)
	if r.value {
		return value
	}
	return key
}

// ReadRows copies one row per cell to dst. It fails for good once the pager has failed: rows
// that a failed pass has written are no K/V.
func (r Rows) ReadRows(cells []int32, _ bool, dst []byte) error {
	key, value := dst, []byte(nil)
	if r.value {
		key, value = value, key
	}
	if err := r.g.pager.ReadRows(r.layer.id, cells, key, value); err != nil {
		return err
	}
	return r.g.pager.Err()
}

// WriteRows copies one row per cell from src, after the pager has started.
func (r Rows) WriteRows(cells []int32, _ bool, src []byte) error {
	if !r.g.pager.Started() {
		return errors.New("the pager has no pages yet")
	}
	r.g.touch(cells)
	if r.value {
		return r.g.pager.WriteRows(r.layer.id, cells, nil, src)
	}
	return r.g.pager.WriteRows(r.layer.id, cells, src, nil)
}

// touch notes that pages have rows, and other rows than files have.
func (g *Group) touch(cells []int32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, cell := range cells {
		page, n := g.pageOf(cell)
		g.used[page] = g.passes
		if p := g.placed[page]; p != nil && n < p.rows {
			g.forgetPlaceLocked(page)
		}
	}
}

// placedPage is a page whose first rows are also in files. Those after them may be rows of
// other sequences, which are in none.
type placedPage struct {
	rows     int
	files    []*os.File        // descriptors of our own
	sections map[int][]Section // of each layer of the pager
}

func (p *placedPage) close() {
	for _, f := range p.files {
		f.Close()
	}
}

// Place says that the rows of cells, just written, are also in a file: K of layers[i] from
// keyOffsets[i] on and V from valueOffsets[i], one after the other in the order of cells.
// Pages that are in files as a whole are not written to the spill.
func (g *Group) Place(cells []int32, file *os.File, layers []int, keyOffsets, valueOffsets []int64) error {
	if len(keyOffsets) != len(layers) || len(valueOffsets) != len(layers) {
		return fmt.Errorf("placing rows of %d layers: got %d and %d offsets", len(layers), len(keyOffsets), len(valueOffsets))
	}
	for at := 0; at < len(cells); {
		n := 1
		for at+n < len(cells) && cells[at+n] == cells[at]+int32(n) && int(cells[at+n])%g.pager.PageCells() != 0 {
			n++
		}
		if err := g.place(cells[at], n, at, file, layers, keyOffsets, valueOffsets); err != nil {
			return err
		}
		at += n
	}
	return nil
}

// place adds n rows of one page, from a cell on, which are the file's from row `at` on. After
// an error rows that follow are not placed: some layers would lack those before.
func (g *Group) place(cell int32, n, at int, file *os.File, layers []int, keyOffsets, valueOffsets []int64) (err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	page, first := g.pageOf(cell)
	defer func() {
		if err != nil {
			g.forgetPlaceLocked(page)
		}
	}()
	p := g.placed[page]
	if p == nil || p.rows != first {
		g.forgetPlaceLocked(page)
		if first != 0 {
			return nil // the rows before these are in no file
		}
		p = &placedPage{sections: make(map[int][]Section)}
		g.placed[page] = p
	}
	own, err := reopen(file)
	if err != nil {
		return err
	}
	p.files = append(p.files, own)
	p.rows += n
	for i, layer := range layers {
		l, err := g.layer(layer)
		if err != nil {
			return fmt.Errorf("placing rows: %w", err)
		}
		key, value := g.pager.RowBytes(l.id)
		p.sections[l.id] = append(p.sections[l.id], Section{
			FD: own.Fd(), First: first, N: n,
			KeyOffset: keyOffsets[i] + int64(at*key), ValueOffset: valueOffsets[i] + int64(at*value),
		})
		err = g.pager.Back(l.id, page, p.sections[l.id])
		if err != nil && !errors.Is(err, syscall.EBUSY) { // with the rows that follow it may be all of the page
			return err
		}
	}
	if p.rows == g.pager.PageCells() {
		g.forgetPlaceLocked(page) // it is complete; the pager has descriptors of its own
	}
	return nil
}

// reopen makes a descriptor of our own: the caller closes its, and the file may have no name any more.
func reopen(file *os.File) (*os.File, error) {
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
}

// forgetPlaceLocked: rows computed next follow those that are in files.
func (g *Group) forgetPlaceLocked(page int) {
	if p := g.placed[page]; p != nil {
		p.close()
		delete(g.placed, page)
	}
}
