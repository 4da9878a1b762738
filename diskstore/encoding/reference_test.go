package encoding

import (
	"encoding/binary"
	"testing"

	"github.com/klauspost/compress/huff0"
	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
)

// A second reader of lossy sections, after docs/page-format.md, without regard to speed.

// refBlock is a block of numbers with its planes.
type refBlock struct {
	numbers int
	planes  [][]byte
}

// refHeader is the header of a section.
type refHeader struct {
	arrangement, group, row int
	centers                 []float32
}

func refHalf(p []byte) float32 { return float16.Frombits(binary.LittleEndian.Uint16(p)).Float32() }

// refRead returns the header and the bytes after it.
func refRead(stored []byte) (h refHeader, rest []byte) {
	h.arrangement = int(stored[0])
	h.group = int(binary.LittleEndian.Uint16(stored[2:]))
	h.row = int(binary.LittleEndian.Uint32(stored[4:]))
	for i := range h.row {
		h.centers = append(h.centers, refHalf(stored[8+2*i:]))
	}
	return h, stored[8+2*h.row:]
}

// refBlocks returns the blocks of a section of n decoded bytes.
func refBlocks(t *testing.T, id ID, stored []byte, n int) []refBlock {
	h, rest := refRead(stored)
	most := 131072
	if h.row > 0 {
		whole := h.row
		if h.arrangement == 1 {
			whole *= h.group
		}
		most = most / whole * whole
	}
	var blocks []refBlock
	for left := n / 2; left > 0; {
		b := refBlock{numbers: min(left, most)}
		left -= b.numbers
		scales := b.numbers / h.group
		if h.arrangement == 1 {
			scales = max(1, b.numbers/h.row/h.group) * h.row
		}
		sizes := []int{scales, scales, b.numbers / 2}
		if id == Q8_0 {
			sizes = append(sizes, b.numbers/2)
		}
		entries := rest
		rest = rest[4*len(sizes):]
		for i, size := range sizes {
			entry := binary.LittleEndian.Uint32(entries[4*i:])
			b.planes = append(b.planes, refPlane(t, int(entry%4), rest[:entry/4], size))
			rest = rest[entry/4:]
		}
		blocks = append(blocks, b)
	}
	require.Empty(t, rest)
	return blocks
}

func refPlane(t *testing.T, form int, stored []byte, n int) []byte {
	switch form {
	case 0:
		require.Len(t, stored, n)
		return stored
	case 1:
		var s huff0.Scratch
		_, rest, err := huff0.ReadTable(stored, &s)
		require.NoError(t, err)
		s.MaxDecodedSize = n
		plane, err := s.Decompress4X(rest, n)
		require.NoError(t, err)
		return append([]byte(nil), plane...)
	}
	require.Equal(t, 2, form)
	require.Len(t, stored, 1)
	plane := make([]byte, n)
	for i := range plane {
		plane[i] = stored[0]
	}
	return plane
}

// refCode returns code i of 4 bits.
func refCode(codes []byte, i int) int {
	b := codes[i/32*16+i%16]
	if i%32 >= 16 {
		return int(b / 16)
	}
	return int(b % 16)
}

// refDecode returns n decoded bytes of a section.
func refDecode(t *testing.T, id ID, stored []byte, n int) []byte {
	h, _ := refRead(stored)
	var rows []byte
	for _, b := range refBlocks(t, id, stored, n) {
		x := make([]float32, b.numbers)
		for i := range x {
			s := i / h.group
			if h.arrangement == 1 {
				row, channel := i/h.row, i%h.row
				groups := max(1, b.numbers/h.row/h.group)
				s = min(row/h.group, groups-1)*h.row + channel
			}
			q := refCode(b.planes[2], i) - 8
			if id == Q8_0 {
				q = 16*q + refCode(b.planes[3], i)
			}
			x[i] = float32(q) * refHalf([]byte{b.planes[0][s], b.planes[1][s]})
		}
		if h.arrangement >= 2 {
			for at := 0; at < len(x); at += 64 {
				refRotate(x[at : at+64])
			}
		}
		center := func(i int) float32 {
			if h.row == 0 {
				return 0
			}
			return h.centers[i%h.row]
		}
		for i := range x {
			if h.arrangement > 0 {
				x[i] += center(i)
			}
			rows = binary.LittleEndian.AppendUint16(rows, float16.Fromfloat32(x[i]).Bits())
		}
	}
	return rows
}

func refRotate(x []float32) {
	for d := 1; d < 64; d *= 2 {
		for i := range x {
			if i&d == 0 {
				a, b := x[i], x[i+d]
				x[i], x[i+d] = a+b, a-b
			}
		}
	}
	for i := range x {
		x[i] /= 8
	}
}
