package encoding

import (
	"encoding/binary"
	"errors"

	"github.com/klauspost/compress/huff0"

	"github.com/kvtier/kvtier/diskstore/encoding/huffman"
)

// The forms of a plane of bytes.
const (
	formRaw     = 0
	formHuffman = 1
	formSame    = 2

	tableLog = 11 // the longest code that RFC 8878 allows
)

type plane struct {
	library huff0.Scratch
	decoder huffman.Decoder
}

// encodeAll appends a block of planes: their sizes and forms, and the planes in these forms.
func (p *plane) encodeAll(out []byte, planes [][]byte, least int) []byte {
	at := len(out)
	out = append(out, make([]byte, 4*len(planes))...)
	for i, plane := range planes {
		form, stored := p.encode(plane, least)
		binary.LittleEndian.PutUint32(out[at+4*i:], uint32(len(stored))<<2|uint32(form))
		out = append(out, stored...)
	}
	return out
}

// decodeAll undoes encodeAll: it decodes planes of the given sizes, into planes unless they are raw in
// stored, and returns the size of the block.
func (p *plane) decodeAll(stored []byte, planes *[planesMax][]byte, sizes []int) (size int, err error) {
	size = 4 * len(sizes)
	if len(stored) < size {
		return 0, corrupt("a block ends after %d bytes", len(stored))
	}
	for i, want := range sizes {
		entry := binary.LittleEndian.Uint32(stored[4*i:])
		length := int(entry >> 2)
		if length > len(stored)-size {
			return 0, corrupt("a plane of %d bytes, of which %d are there", length, len(stored)-size)
		}
		if planes[i], err = p.decode(int(entry&3), stored[size:size+length:size+length], planes[i][:want]); err != nil {
			return 0, err
		}
		size += length
	}
	return size, nil
}

// encode returns the smallest form of a plane of at most 262,143 bytes. Huffman codes must gain a part
// of the plane with the divisor least. The result is valid until the next call.
func (p *plane) encode(plane []byte, least int) (form int, stored []byte) {
	h := &p.library
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

// decode returns the bytes of a plane, in stored or in plane, which has their size.
func (p *plane) decode(form int, stored, plane []byte) ([]byte, error) {
	switch {
	case form == formRaw && len(stored) == len(plane):
		return stored, nil
	case form == formSame && len(stored) == 1:
		for j := range plane {
			plane[j] = stored[0]
		}
		return plane, nil
	case form == formHuffman && len(stored) < len(plane):
		return plane, p.decodeHuffman(stored, plane)
	}
	return nil, corrupt("a plane of form %d has %d bytes for %d", form, len(stored), len(plane))
}

func (p *plane) decodeHuffman(stored, plane []byte) error {
	if useHuffman && len(plane) >= huffman.LeastPlane {
		if err := p.decoder.Decode(stored, plane); err != nil {
			return corrupt("%v", err)
		}
		return nil
	}
	table, rest, err := huff0.ReadTable(stored, &p.library)
	if err != nil {
		return corrupt("a table of Huffman codes: %v", err)
	}
	got, err := table.Decoder().Decompress4X(plane[:0:len(plane)], rest)
	if err != nil || len(got) != len(plane) {
		return corrupt("a plane of %d bytes: %v", len(got), err)
	}
	return nil
}

// useHuffman is false on processors for which the library is quicker, and in tests of it.
var useHuffman = huffman.Fast
