package llamastate

import (
	"io"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

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
