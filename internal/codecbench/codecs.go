package codecbench

import (
	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// codec is an encoding to measure.
type codec struct {
	name  string
	lossy bool
	// encode returns the rows of a section with their encoding, or Raw and nil where the encoding
	// does not fit the section or gains nothing.
	encode func(rows []byte, s pagefile.Section) (encoding.ID, []byte)
}

// codecsOf returns the encodings that are measured, in the order of the table.
func codecsOf(coder *encoding.Coder) []codec {
	var all []codec
	for _, id := range []encoding.ID{encoding.Raw, encoding.Zstd, encoding.Split} {
		all = append(all, codec{name: id.String(), encode: func(rows []byte, s pagefile.Section) (encoding.ID, []byte) {
			return coder.Only(id, rows, shapeOf(s))
		}})
	}
	return all
}

// shapeOf describes the rows of a section as a page store does.
func shapeOf(s pagefile.Section) encoding.Shape {
	if !s.Kind.PerToken() {
		return encoding.Shape{}
	}
	return encoding.Shape{RowBytes: int(s.RowBytes)}
}
