package llamastate

import (
	"errors"
	"fmt"
	"io"
)

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

// write is the inverse of read.
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

// readFull reads len(p) bytes at off.
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

// writeAt writes p at off.
func writeAt(w io.WriterAt, p []byte, off int64) error {
	if _, err := w.WriteAt(p, off); err != nil {
		return fmt.Errorf("write %d bytes of the state at byte %d: %w", len(p), off, err)
	}
	return nil
}
