package llamastate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// Builder writes the file of a sequence, page after page in any order.
type Builder struct {
	shape  *Shape
	w      io.WriterAt
	tokens int
	window int
	size   int64
	caches []content
}

// Build begins a file of tokens and writes the heads. Tokens of media are any below 0. window is the number of positions that
// the server's window keeps, 0 without a window. The tokens must be more than the window
// keeps: llama-server goes on with a window only if it holds a cell before the window, and a
// cell at a negative position, which would do, is never removed. Bytes of w that the Builder
// does not write must be zero. The file is complete after [Builder.WriteRows] for every token,
// and for the end of a sequence that has one.
func (s *Shape) Build(w io.WriterAt, tokens []int32, media []Medium, window int) (*Builder, error) {
	if len(tokens) < 1 || len(tokens) > maxTokens {
		return nil, fmt.Errorf("llamastate: build a file of %d tokens: want 1 to %d", len(tokens), maxTokens)
	}
	if (window > 0) != s.Has(Window) {
		return nil, fmt.Errorf("llamastate: build a file with a window of %d positions of a model with the shape %+v", window, *s)
	}
	if window >= len(tokens) {
		return nil, fmt.Errorf("llamastate: build a file of %d tokens: want more than the %d of the window", len(tokens), window)
	}
	if !s.fits(tokens, media) {
		return nil, errors.New("llamastate: build a file of tokens that are not those of its media")
	}
	b := &Builder{shape: s, w: w, tokens: len(tokens), window: window}
	h, at := &heads{w: w}, spotsOf(len(tokens), media)
	h.tokens(s, tokens, media)
	for i := range s.Caches {
		b.caches = append(b.caches, h.cache(s, &s.Caches[i], tokens, &at, window))
	}
	h.flush()
	b.size = h.off
	return b, h.err
}

// fits reports whether tokens below 0 are those of media, and no others, and caches tell the columns of images
// that have some.
func (s *Shape) fits(tokens []int32, media []Medium) bool {
	at := 0
	flat := s.Has(Window) || slices.ContainsFunc(s.Caches, func(c Cache) bool { return c.Kind == Full && !c.Ext })
	for _, m := range media {
		if m.Columns > 0 && (flat || m.Columns*m.Rows != m.Tokens) {
			return false
		}
		if m.Start < at || m.Tokens < 1 || m.End() > len(tokens) || !all(tokens[at:m.Start], false) || !all(tokens[m.Start:m.End()], true) {
			return false
		}
		at = m.End()
	}
	return all(tokens[at:], false)
}

// all reports whether all of some tokens are below 0, or none is.
func all(tokens []int32, below bool) bool {
	return !slices.ContainsFunc(tokens, func(t int32) bool { return t < 0 != below })
}

// Size returns the file's size in bytes.
func (b *Builder) Size() int64 { return b.size }

// WriteRows writes the rows of the first n tokens of a page, the tokens that it shares with the
// sequence, from position start on. buf holds the page as layout says. Sections of windows and
// states belong at the end of the file and are passed over elsewhere.
func (b *Builder) WriteRows(layout pagefile.Layout, start, n int, buf []byte) error {
	end := start + n
	if start < 0 || n < 0 || n > layout.Tokens() || end > b.tokens {
		return fmt.Errorf("llamastate: write rows of tokens %d to %d: the file has %d tokens, the page %d", start, end, b.tokens, layout.Tokens())
	}
	for i, sec := range layout.Sections() {
		p, err := b.shape.place(sec)
		rows := layout.Rows(buf, i)
		switch {
		case err != nil:
		case b.shape.Caches[p.group].Kind == Full:
			err = b.writeSection(p, start, rows[:int64(n)*p.t.Row])
		case end == b.tokens && n == layout.Tokens():
			err = b.writeSection(p, start, rows)
		}
		if err != nil {
			return fmt.Errorf("llamastate: write rows of group %d layer %d %v: %w", sec.Group, sec.Layer, sec.Kind, err)
		}
	}
	return nil
}

// writeSection writes the rows of one section of a page from start on.
func (b *Builder) writeSection(p place, start int, rows []byte) error {
	at := &b.caches[p.group]
	cell := int64(start)
	switch b.shape.Caches[p.group].Kind {
	case Recurrent:
		cell = 0
	case Window:
		if int(p.rows) != b.window {
			return fmt.Errorf("the page has %d rows of the window, the file %d", p.rows, b.window)
		}
		cell = 1 // the first cell is the one before the window
	}
	base := at.tensors[p.half][p.layer]
	if p.t.Element > 0 {
		cols := columns{element: p.t.Element, stride: int64(at.cells) * p.t.Element, row: p.t.Row}
		return cols.write(b.w, rows, base+cell*p.t.Element)
	}
	return writeAt(b.w, rows, base+cell*p.t.Row)
}

// CopyRows copies the rows of the Builder's tokens from a file that another Builder of the same
// shape was writing, of the same tokens and more. There must be no window and no state.
func (b *Builder) CopyRows(r io.ReaderAt, from *Builder) error {
	if b.shape.HasEnd() || b.shape != from.shape || b.tokens > from.tokens {
		return fmt.Errorf("llamastate: copy rows of %d tokens from a file of %d", b.tokens, from.tokens)
	}
	buf := make([]byte, ahead)
	for group, c := range b.shape.Caches {
		for half, tensors := range c.Tensors {
			for layer, t := range tensors {
				columns, width := int64(1), t.Row
				if t.Element > 0 {
					columns, width = t.Row/t.Element, t.Element
				}
				to, of := b.caches[group].tensors[half][layer], from.caches[group].tensors[half][layer]
				for i := range columns {
					src := io.NewSectionReader(r, of+i*int64(from.tokens)*width, int64(b.tokens)*width)
					dst := io.NewOffsetWriter(b.w, to+i*int64(b.tokens)*width)
					n, err := io.CopyBuffer(dst, src, buf)
					if err == nil && n < src.Size() {
						err = io.ErrUnexpectedEOF
					}
					if err != nil {
						return fmt.Errorf("llamastate: copy rows of group %d layer %d: %w", group, layer, err)
					}
				}
			}
		}
	}
	return nil
}

// heads writes numbers one after another, and leaves gaps for rows. After an error heads writes nothing more.
type heads struct {
	w   io.WriterAt
	buf []byte
	off int64 // of the end of buf
	err error
}

func (h *heads) u32(values ...uint32) {
	for _, v := range values {
		h.buf = binary.LittleEndian.AppendUint32(h.buf, v)
		h.off += 4
	}
	if len(h.buf) >= ahead {
		h.flush()
	}
}

func (h *heads) tokens(s *Shape, tokens []int32, media []Medium) {
	if len(media) == 0 {
		h.u32(magic, s.Version, uint32(len(tokens)))
		for _, t := range tokens {
			h.u32(uint32(t))
		}
		return
	}
	var chunks []byte
	for i := range media {
		chunk := media[i].whole()
		chunks = binary.LittleEndian.AppendUint32(chunks, uint32(len(chunk)))
		chunks = append(chunks, chunk...)
	}
	chunks = append(chunks, make([]byte, -len(chunks)&3)...)
	h.u32(magic, s.Version, uint32(4+len(tokens)+len(media)+len(chunks)/4))
	h.u32(math.MaxUint32, packedForm, uint32(len(tokens)))
	for _, t := range tokens {
		h.u32(uint32(max(t, MediaToken)))
	}
	h.u32(uint32(len(media)))
	for _, m := range media {
		h.u32(uint32(m.Start))
	}
	for word := range slices.Chunk(chunks, 4) {
		h.u32(binary.LittleEndian.Uint32(word))
	}
}

func (h *heads) flush() {
	if h.err == nil && len(h.buf) > 0 {
		h.err = writeAt(h.w, h.buf, h.off-int64(len(h.buf)))
	}
	h.buf = h.buf[:0]
}

// gap leaves out n bytes and returns their offset.
func (h *heads) gap(n int64) int64 {
	h.flush()
	h.off += n
	return h.off - n
}

func (h *heads) cache(s *Shape, c *Cache, tokens []int32, spots *spots, window int) content {
	n := len(tokens)
	at := content{cells: n}
	if c.Kind == Recurrent {
		at.cells = 1
		last, _, _ := spots.of(n - 1)
		h.u32(1, uint32(last), 0, 0, c.Layers)
		for half := range c.Tensors {
			h.tensors(c, half, &at)
		}
		return at
	}
	if c.Kind == Window {
		at.first = n - window
		at.cells = window + 1
	}
	h.u32(c.Streams, uint32(at.cells))
	if c.Kind == Window {
		// llama-server computes a whole prompt anew unless a cell is left that the next token
		// no longer attends to: the cell before the window, with any rows.
		h.cell(s, c, spots, at.first-1, tokens)
	}
	for token := at.first; token < n; token++ {
		h.cell(s, c, spots, token, tokens)
	}
	h.u32(flag(c.Transposed), c.Layers)
	if s.Version >= 4 {
		h.u32(c.Rotations[:]...)
	}
	for half := range c.Tensors {
		h.tensors(c, half, &at)
	}
	for range c.Streams - 1 {
		h.u32(0)
	}
	return at
}

func (h *heads) cell(s *Shape, c *Cache, spots *spots, token int, tokens []int32) {
	pos, x, y := spots.of(token)
	h.u32(uint32(pos), 1)
	if c.Ext {
		h.u32(uint32(x), uint32(y))
		if s.Version >= 3 {
			h.u32(uint32(max(tokens[token], MediaToken)))
		}
	}
	h.u32(0)
}

func (h *heads) tensors(c *Cache, half int, at *content) {
	for _, t := range c.Tensors[half] {
		h.u32(uint32(t.Type))
		if t.Element > 0 {
			h.u32(uint32(t.Element), uint32(t.Row/t.Element))
		} else {
			h.u32(uint32(t.Row), 0)
		}
		at.tensors[half] = append(at.tensors[half], h.gap(t.Row*int64(at.cells)))
	}
}

func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// Span is the range of a file that holds the rows of one section of its pages.
type Span struct {
	Section pagefile.Section // as in Shape.Sections or Shape.EndSections
	Offset  int64            // in the file
	Size    int64            // in bytes
	Row     int64            // bytes of a position's row; 0 unless each row is whole, and rows are in the order of positions
	End     bool             // a window or a state, in the last page alone
}

// Spans returns the spans of the file, in their order in the file and in that of the sections of
// a page. The bytes between spans are heads.
func (b *Builder) Spans() []Span {
	var spans []Span
	for _, sec := range b.shape.EndSections(b.window) {
		p, err := b.shape.place(sec)
		if err != nil {
			continue // the sections are those of the shape
		}
		at, kind := &b.caches[p.group], b.shape.Caches[p.group].Kind
		span := Span{Section: sec, Offset: at.tensors[p.half][p.layer], Size: p.t.Row * int64(at.cells), End: kind != Full}
		if kind == Full && p.t.Element == 0 {
			span.Row = p.t.Row
		}
		spans = append(spans, span)
	}
	return spans
}

// To returns a Builder that writes the rows of the same file to another writer.
func (b *Builder) To(w io.WriterAt) *Builder {
	to := *b
	to.w = w
	return &to
}
