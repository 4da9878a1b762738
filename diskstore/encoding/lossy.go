package encoding

import (
	"cmp"
	"encoding/binary"
	"sync"

	"github.com/x448/float16"
)

/*
docs/page-format.md has the format of a Q8_0, Q4_0 or Int4 section, and the steps in which a number
is computed, in f32. Planes have codes of 4 bits, also in Q8_0: so few symbols are one stream of Huffman codes, and bits that look random
stay raw. A scale and 32 q are a block_q8_0 or block_q4_0 of ggml.
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
	whole := cmp.Or(l.row, l.group)
	if n < 1 || n%int64(2*whole) != 0 {
		return l, 0, corrupt("%d bytes in rows or groups of %d numbers", n, whole)
	}
	return l, 2 * l.row, nil
}

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

var noCenters [maxCenters]float32
