package encoding

import (
	"errors"

	"github.com/klauspost/compress/huff0"
)

// The forms of a plane of bytes.
const (
	formRaw     = 0
	formHuffman = 1
	formSame    = 2

	tableLog = 11 // the longest code that RFC 8878 allows
)

// encodePlane returns the smallest form of a plane of at most 262,143 bytes. Huffman codes must gain
// a part of the plane with the divisor least. The result is valid until the next call with the same h.
func encodePlane(h *huff0.Scratch, plane []byte, least int) (form int, stored []byte) {
	h.Reuse, h.TableLog = huff0.ReusePolicyNone, tableLog
	stored, _, err := huff0.Compress4X(plane, h)
	switch {
	case errors.Is(err, huff0.ErrUseRLE):
		return formSame, plane[:1]
	case err != nil || len(stored) >= len(plane)-len(plane)/least:
		return formRaw, plane
	}
	return formHuffman, stored
}

// decodePlane returns the n bytes of a plane, in stored or in plane, which has room for them.
func decodePlane(h *huff0.Scratch, form int, stored, plane []byte, n int) ([]byte, error) {
	switch {
	case form == formRaw && len(stored) == n:
		return stored, nil
	case form == formSame && len(stored) == 1:
		plane = plane[:n]
		for j := range plane {
			plane[j] = stored[0]
		}
		return plane, nil
	case form == formHuffman && len(stored) < n:
		table, rest, err := huff0.ReadTable(stored, h)
		if err != nil {
			return nil, corrupt("a table of Huffman codes: %v", err)
		}
		plane, err := table.Decoder().Decompress4X(plane[:0:n], rest)
		if err != nil || len(plane) != n {
			return nil, corrupt("a plane of %d bytes: %v", n, err)
		}
		return plane, nil
	}
	return nil, corrupt("a plane of form %d has %d bytes for %d", form, len(stored), n)
}
