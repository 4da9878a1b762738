package encoding

import (
	"encoding/binary"
	"sync"

	"github.com/x448/float16"
)

/*
A Q8_0, Q4_0 or Int4 section. Rows are numbers of f16. All integers are little endian.

	offset  bytes  header
	     0      1  A: the arrangement, 0 in Q8_0 and Q4_0
	               0 a group is G numbers beside each other in a row
	               1 a group is one channel of at least G rows; there are centers
	               2 as 0, of rotated numbers
	               3 as 2; there are centers
	     1      1  zero
	     2      2  G: 32 in Q8_0 and Q4_0; 32 or 64; 64 where A is 2 or 3
	     4      4  C: numbers in a row where A is 1 or 3, else 0. A is 1: a multiple of 32, at most
	               131,072 / G. A is 3: a multiple of 64, at most 8,192
	     8     2C  centers, an f16 for each number of a row, where A is 1 or 3

Blocks follow. A block holds 131,072 numbers; the last block holds the rest. With C > 0 a block
holds whole rows instead: as many as 131,072 numbers allow, and where A is 1 a multiple of G. The
numbers of a section are a multiple of G, or of C where C > 0.

	offset  bytes  block
	     0     4P  a plane's size in the block and its form, for each of P planes: the size times 4,
	               plus the form: 0 raw, 1 Huffman, 2 one byte for all, as in Split. P is 4 in
	               Q8_0, else 3
	    4P         the planes, in the same order

The first plane has the low bytes of all scales, the second their high bytes. A scale is an f16 and
finite, as are centers. A is 1: the block's rows are divided into groups of G, of which the last has
the rest as well, and a group has a scale for each channel. Otherwise there is a scale for each G
numbers.

The third plane has codes of 4 bits, of 32 numbers after 32 numbers: byte j of 16 has the code of
number j in its low half and that of number j+16 in its high half. In Q4_0 and Int4, q is the code
less 8. In Q8_0, q is 16 times that, plus the code in the fourth plane, which is like the third. So
few symbols make a plane in Huffman codes, and bits that look random stay raw. A scale and 32 q are a
block_q8_0 or block_q4_0 of ggml.

A number is q times the scale of its group, computed in f32. Where A is 2 or 3, each 64 of these are
transformed: for d = 1, 2, 4, 8, 16, 32, in that order, a and b at places i and i+d, for each i
without bit d, become a+b and a-b, in f32; then all are multiplied by 1/8. Where A is 1, 2 or 3 the
number's center is added, in f32, which is 0 where A is 2. The number is rounded to f16, to nearest
even.
*/
const (
	lossyHeaderBytes = 8

	lossyBlock = 128 << 10 // numbers of a block
	unit       = 32        // numbers whose codes stand together
	rotation   = 64        // numbers that are rotated together
	maxCenters = 8192
	maxScales  = lossyBlock / unit
)

// The arrangements.
const (
	alongRow        = 0
	alongChannel    = 1
	rotated         = 2
	rotatedCentered = 3
)

// lossy is a way to encode rows as Q8_0, Q4_0 or Int4.
type lossy struct {
	id          ID
	arrangement int
	group       int    // G
	row         int    // C
	centers     []byte // of C f16; empty for none
}

// ggmls returns ggml's way for Q8_0 or Q4_0.
func ggmls(id ID) lossy { return lossy{id: id, group: unit} }

// centered reports whether the section has centers.
func (l lossy) centered() bool {
	return l.arrangement == alongChannel || l.arrangement == rotatedCentered
}

// block returns the bytes of a block of rows before the last one.
func (l lossy) block() int {
	whole := max(1, l.row) // numbers of which a block has a multiple
	if l.arrangement == alongChannel {
		whole *= l.group
	}
	return 2 * (lossyBlock / whole * whole)
}

// scales returns the number of scales of a block of n numbers.
func (l lossy) scales(n int) int {
	if l.arrangement == alongChannel {
		return max(1, n/l.row/l.group) * l.row
	}
	return n / l.group
}

// planes returns the sizes of a block's planes, for n bytes of rows.
func (l lossy) planes(n int) []int {
	scales := l.scales(n / 2)
	sizes := []int{scales, scales, n / 4, n / 4}
	if l.id == Q8_0 {
		return sizes
	}
	return sizes[:planesMax-1]
}

// lossyScratch is the memory for a block.
type lossyScratch struct {
	low, high [maxScales]byte
	codes     [lossyBlock / 2]byte
	lower     [lossyBlock / 2]byte // the lower halves of codes of 8 bits
	scales    [maxScales]float32
	spread    [maxScales]float32 // a scale for each unit of numbers
	centers   [maxCenters]float32
	huffman   plane
}

var lossyScratches = sync.Pool{New: func() any { return new(lossyScratch) }}

// readLossy reads the header of a section of n decoded bytes, and returns the bytes of centers, which follow.
func readLossy(id ID, header []byte, n int64) (l lossy, centers int, err error) {
	if len(header) < lossyHeaderBytes {
		return l, 0, corrupt("%d bytes are no header", len(header))
	}
	l = lossy{id: id, arrangement: int(header[0]), group: int(binary.LittleEndian.Uint16(header[2:]))}
	row := binary.LittleEndian.Uint32(header[4:])
	if row > maxCenters {
		return l, 0, corrupt("%d numbers in a row", row)
	}
	l.row = int(row)
	if header[1] != 0 || !l.valid() {
		return l, 0, corrupt("%v with arrangement %d, groups of %d, rows of %d numbers", id, l.arrangement, l.group, l.row)
	}
	whole := l.group
	if l.row > 0 {
		whole = l.row
	}
	if n < 1 || n%int64(2*whole) != 0 {
		return l, 0, corrupt("%d bytes in rows or groups of %d numbers", n, whole)
	}
	return l, 2 * l.row, nil
}

// valid reports whether the format allows the header.
func (l lossy) valid() bool {
	switch {
	case l.id != Int4:
		return l.arrangement == alongRow && l.group == unit && l.row == 0
	case l.arrangement > rotatedCentered || l.group != unit && l.group != rotation:
		return false
	case l.arrangement == alongChannel:
		return l.row > 0 && l.row%unit == 0 && l.row*l.group <= lossyBlock
	case l.arrangement == rotatedCentered:
		return l.row > 0 && l.row%rotation == 0 && l.group == rotation
	case l.arrangement == rotated:
		return l.row == 0 && l.group == rotation
	}
	return l.row == 0
}

// decodeLossy fills rows from a section.
func decodeLossy(id ID, stored, rows []byte) error {
	l, centers, err := readLossy(id, stored, int64(len(rows)))
	if err != nil {
		return err
	}
	size := lossyHeaderBytes + centers
	if size > len(stored) {
		return corrupt("%d bytes of centers in %d bytes", centers, len(stored))
	}
	l.centers, stored = stored[lossyHeaderBytes:size], stored[size:]
	sc := lossyScratches.Get().(*lossyScratch)
	defer lossyScratches.Put(sc)
	if err := sc.readCenters(l); err != nil {
		return err
	}
	return decodeBlocks(stored, rows, l.block(), func(stored, block []byte) (int, error) { return sc.decodeBlock(stored, block, l) })
}

// readCenters fills in the centers for all blocks.
func (sc *lossyScratch) readCenters(l lossy) error {
	for i := range len(l.centers) / 2 {
		center := float16.Frombits(binary.LittleEndian.Uint16(l.centers[2*i:]))
		if !center.IsFinite() {
			return corrupt("center %d is not finite", i)
		}
		sc.centers[i] = center.Float32()
	}
	return nil
}

// decodeBlock fills a block, and returns its size in stored.
func (sc *lossyScratch) decodeBlock(stored, block []byte, l lossy) (size int, err error) {
	planes := [planesMax][]byte{sc.low[:], sc.high[:], sc.codes[:], sc.lower[:]}
	if size, err = sc.huffman.decodeAll(stored, &planes, l.planes(len(block))); err != nil {
		return 0, err
	}
	if err := sc.readScales(planes[0], planes[1]); err != nil {
		return 0, err
	}
	sc.dequantize(block, planes[2], planes[3], l)
	return size, nil
}

// readScales fills in the scales of a block from their low and high bytes.
func (sc *lossyScratch) readScales(low, high []byte) error {
	for i := range low {
		scale := float16.Frombits(uint16(low[i]) | uint16(high[i])<<8)
		if !scale.IsFinite() {
			return corrupt("scale %d is not finite", i)
		}
		sc.scales[i] = scale.Float32()
	}
	return nil
}

// dequantize fills a block from the scales and its codes, in Q8_0 their upper and lower halves.
func (sc *lossyScratch) dequantize(block, codes, lower []byte, l lossy) {
	switch l.arrangement {
	case alongChannel:
		rows := len(block) / (2 * l.row)
		groups := max(1, rows/l.group)
		for r := range rows {
			scales := sc.scales[min(r/l.group, groups-1)*l.row:][:l.row]
			dequantizeChannels(block[2*r*l.row:][:2*l.row], codes[r*l.row/2:][:l.row/2], scales, sc.centers[:l.row])
		}
	case rotated, rotatedCentered:
		row, centers := l.row, sc.centers[:]
		if l.arrangement == rotated {
			row, centers = maxCenters, noCenters[:]
		}
		for at := 0; at < len(block)/2; at += row {
			n := min(row, len(block)/2-at)
			dequantizeRotated(block[2*at:][:2*n], codes[at/2:][:n/2], sc.scales[at/rotation:][:n/rotation], centers[:n])
		}
	default:
		scales := sc.spreadScales(len(block)/2/unit, l.group)
		if l.id == Q8_0 {
			dequantize8(block, codes, lower, scales)
		} else {
			dequantize4(block, codes, scales)
		}
	}
}

// spreadScales gives each of n units of numbers the scale of its group.
func (sc *lossyScratch) spreadScales(n, group int) []float32 {
	if group == unit {
		return sc.scales[:n]
	}
	for i := range n {
		sc.spread[i] = sc.scales[i*unit/group]
	}
	return sc.spread[:n]
}

// noCenters are the centers of numbers that have none.
var noCenters [maxCenters]float32
