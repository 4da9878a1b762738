package llamastate

import (
	"errors"
	"fmt"
	"io"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// End reports whether the rows of windows and the states of the file are those after its last
// token, so that a page with the sections of [Shape.EndSections] can be read.
func (f *File) End() bool { return !f.Cut }

// WindowRows returns the number of positions in the file's window; 0 without a window.
func (f *File) WindowRows() int {
	for i, c := range f.Shape.Caches {
		if c.Kind == Window {
			return len(f.caches[i].order)
		}
	}
	return 0
}

// ReadRows reads the rows of the tokens from position start on into buf, as layout says: any
// of the sections that [Shape.Sections] and [Shape.EndSections] return. A layout with a window
// or a state must end where the file does.
func (f *File) ReadRows(layout pagefile.Layout, start int, buf []byte) error {
	end := start + layout.Tokens()
	if start < 0 || end > len(f.Tokens) {
		return fmt.Errorf("llamastate: read rows of tokens %d to %d: the file has %d tokens", start, end, len(f.Tokens))
	}
	for i, sec := range layout.Sections() {
		p, err := f.Shape.place(sec)
		if err == nil {
			err = f.readSection(p, start, end, layout.Rows(buf, i))
		}
		if err != nil {
			return fmt.Errorf("llamastate: read rows of group %d layer %d %v: %w", sec.Group, sec.Layer, sec.Kind, err)
		}
	}
	return nil
}

// readSection reads the rows of one section of a page from start to end.
func (f *File) readSection(p place, start, end int, dst []byte) error {
	at := &f.caches[p.group]
	if f.Shape.Caches[p.group].Kind != Full && (end != len(f.Tokens) || !f.End()) {
		return fmt.Errorf("the file ends after %d tokens, the page after %d", len(f.Tokens), end)
	}
	base := at.tensors[p.half][p.layer]
	switch f.Shape.Caches[p.group].Kind {
	case Recurrent:
		return readFull(f.r, dst, base)
	case Window:
		if start = end - int(p.rows); start != at.first {
			return fmt.Errorf("the window begins at position %d, the page's at %d", at.first, start)
		}
	}
	cols := columns{element: p.t.Element, stride: int64(at.cells) * p.t.Element, row: p.t.Row}
	for i := start; i < end; {
		cell, n := at.order[i-at.first], 1
		for i+n < end && at.order[i+n-at.first] == cell+int32(n) {
			n++
		}
		rows := dst[int64(i-start)*p.t.Row:][:int64(n)*p.t.Row]
		var err error
		if p.t.Element > 0 {
			err = cols.read(f.r, rows, base+int64(cell)*p.t.Element)
		} else {
			err = readFull(f.r, rows, base+int64(cell)*p.t.Row)
		}
		if err != nil {
			return err
		}
		i += n
	}
	return nil
}

// place is the tensor that a section holds.
type place struct {
	group, half, layer int
	t                  Tensor
	rows               int64 // of the tensor in one row of the section
}

func (s *Shape) place(sec pagefile.Section) (place, error) {
	if int(sec.Group) < len(s.Caches) {
		c := &s.Caches[sec.Group]
		for half, kind := range kinds[c.Kind] {
			if kind != sec.Kind || int(sec.Layer) >= len(c.Tensors[half]) {
				continue
			}
			t := c.Tensors[half][sec.Layer]
			if rows := int64(sec.RowBytes) / max(1, t.Row); rows*t.Row == int64(sec.RowBytes) && (rows == 1 || c.Kind == Window) {
				return place{int(sec.Group), half, int(sec.Layer), t, rows}, nil
			}
		}
	}
	return place{}, fmt.Errorf("the server has no such tensor of %d bytes", sec.RowBytes)
}

// columns carries rows of a tensor that is stored by column: element e of the row of cell c
// is at offset e×stride + c×element.
type columns struct {
	element int64 // bytes of an element
	stride  int64 // bytes of a column
	row     int64 // bytes of a row
	buf     []byte
}

// read reads consecutive rows, the first of which has its first element at off.
func (c *columns) read(r io.ReaderAt, rows []byte, off int64) error {
	return c.each(rows, off, func(col []byte, at int64, element int64) error {
		if err := readFull(r, col, at); err != nil {
			return err
		}
		for i, p := int64(0), col; len(p) > 0; i, p = i+1, p[c.element:] {
			copy(rows[i*c.row+element:][:c.element], p)
		}
		return nil
	})
}

func (c *columns) write(w io.WriterAt, rows []byte, off int64) error {
	return c.each(rows, off, func(col []byte, at int64, element int64) error {
		for i, p := int64(0), col; len(p) > 0; i, p = i+1, p[c.element:] {
			copy(p, rows[i*c.row+element:][:c.element])
		}
		return writeAt(w, col, at)
	})
}

// each calls move for the part of each column that belongs to rows, with the part's offset
// and the offset of the column's element in a row.
func (c *columns) each(rows []byte, off int64, move func(col []byte, at int64, element int64) error) error {
	n := int64(len(rows)) / c.row * c.element
	if int64(cap(c.buf)) < n {
		c.buf = make([]byte, n)
	}
	for element := int64(0); element < c.row; element += c.element {
		if err := move(c.buf[:n], off+element/c.element*c.stride, element); err != nil {
			return err
		}
	}
	return nil
}

func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read %d bytes of the state at byte %d: %w", len(p), off, err)
}

func writeAt(w io.WriterAt, p []byte, off int64) error {
	if _, err := w.WriteAt(p, off); err != nil {
		return fmt.Errorf("write %d bytes of the state at byte %d: %w", len(p), off, err)
	}
	return nil
}
