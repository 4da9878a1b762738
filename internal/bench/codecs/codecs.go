package main

import (
	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// lossless and lossy are the encodings that are measured, in the order of the table. The first is
// raw, with which the others are compared.
var (
	lossless = []encoding.ID{encoding.Raw, encoding.Zstd, encoding.Split}
	lossy    = []struct{ k, v encoding.ID }{
		{encoding.Q8_0, encoding.Q8_0},
		{encoding.Q8_0, encoding.Q4_0},
		{encoding.Q4_0, encoding.Q4_0},
		{encoding.Int4, encoding.Int4},
	}
)

// codec is an encoding of pages, or a pair of them for K and V.
type codec struct {
	name  string
	lossy bool
	// encode returns the rows of a section with their encoding, or Raw and nil where the encoding
	// does not fit the section or gains nothing.
	encode func(rows []byte, s pagefile.Section) (encoding.ID, []byte)
}

// codecs returns the encodings that are measured.
func codecs(coder *encoding.Coder, pages *pagefile.Codec) (all []codec) {
	for _, id := range lossless {
		all = append(all, codec{name: id.String(), encode: func(rows []byte, s pagefile.Section) (encoding.ID, []byte) {
			return coder.Only(id, rows, s.Shape())
		}})
	}
	for _, ids := range lossy {
		c := codec{name: ids.k.String(), lossy: true}
		if ids.v != ids.k {
			c.name += "," + ids.v.String()
		}
		c.encode = func(rows []byte, s pagefile.Section) (encoding.ID, []byte) {
			id := ids.k
			if s.Kind == pagefile.KindV {
				id = ids.v
			}
			// Sections that must stay without loss do, as in a store.
			if stored, err := pages.EncodeLossy(id, rows, s); err == nil {
				return id, stored
			}
			return pages.Encode(rows, s)
		}
		all = append(all, c)
	}
	return all
}
