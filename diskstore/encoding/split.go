package encoding

import (
	"encoding/binary"
	"slices"
	"sync"
)

/*
docs/page-format.md has the format of a Split section, and what W, R, A and C are.

Exponents are in the highest byte of an f16 (sign, exponent, two bits of the mantissa) and of an
f32. Those of a bf16 are in the highest byte after a rotation by one bit. Channels of K differ in
scale: the difference to the channel's usual byte has fewer values than the byte. Bits of the
mantissa make codes of the highest byte longer, so that a look-up gives fewer of them.
*/
const (
	splitHeaderBytes = 8
	blockBytes       = 128 << 10

	widthMax   = 4
	rotateMax  = 1
	apartBits  = 2
	planesMax  = 4
	planeBytes = blockBytes / 2
)

type split struct {
	width, rotate int
	apart         int    // bits of the highest byte that are stored apart
	bases         []byte // for each number of a row; empty for none
}

// block returns the bytes of a block of rows before the last one.
func (s split) block() int {
	if row := len(s.bases) * s.width; row > 0 {
		return max(1, blockBytes/row) * row
	}
	return blockBytes
}

// planes returns the sizes of a block's planes, for n bytes.
func (s split) planes(n int) []int {
	plane := n / s.width
	if s.apart > 0 {
		return []int{plane, apartBytes(plane), plane}
	}
	return []int{plane, plane, plane, plane}[:s.width]
}

type scratch struct {
	planes  [planesMax][planeBytes]byte
	huffman plane
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// encode returns rows, whose length is a multiple of the width, as a Split section.
func (s split) encode(rows []byte) []byte {
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	out := make([]byte, splitHeaderBytes, splitHeaderBytes+len(s.bases)+len(rows))
	out[0], out[1], out[2] = byte(s.width), byte(s.rotate), byte(s.apart)
	binary.LittleEndian.PutUint32(out[4:], uint32(len(s.bases)))
	out = append(out, s.bases...)
	for block := range slices.Chunk(rows, s.block()) {
		out = sc.appendBlock(out, block, s)
	}
	return out
}

func (sc *scratch) appendBlock(out, block []byte, s split) []byte {
	var planes [planesMax][]byte
	sizes := s.planes(len(block))
	for i, n := range sizes {
		planes[i] = sc.planes[i][:n]
	}
	switch {
	case s.width == widthMax:
		split4(planes, block, s.bases)
	case s.apart > 0:
		split2(block, planes[0], planes[2], s.bases, s.rotate)
		takeApart(planes[2], planes[1])
	default:
		split2(block, planes[0], planes[1], s.bases, s.rotate)
	}
	return sc.huffman.encodeAll(out, planes[:len(sizes)], leastPlaneGain)
}

// readSplit reads the header of a section of n decoded bytes, and returns the number of bases, which follow.
func readSplit(header []byte, n int64) (s split, bases int, err error) {
	if len(header) < splitHeaderBytes {
		return s, 0, corrupt("%d bytes are no header", len(header))
	}
	s.width, s.rotate, s.apart = int(header[0]), int(header[1]), int(header[2])
	count := int64(binary.LittleEndian.Uint32(header[4:]))
	switch {
	case s.width != 2 && s.width != 4 || s.rotate > rotateMax || s.width == 4 && s.rotate > 0 || header[3] != 0:
		return s, 0, corrupt("numbers of %d bytes, rotated by %d", s.width, s.rotate)
	case s.apart != 0 && s.apart != apartBits || s.apart > 0 && s.width != 2:
		return s, 0, corrupt("%d bits apart of numbers of %d bytes", s.apart, s.width)
	case n%int64(s.width) != 0:
		return s, 0, corrupt("%d bytes in numbers of %d", n, s.width)
	case count*int64(s.width) > blockBytes || count > 0 && n%(count*int64(s.width)) != 0:
		return s, 0, corrupt("%d numbers in a row, for %d bytes", count, n)
	}
	return s, int(count), nil
}

func decodeSplit(stored, rows []byte) error {
	s, bases, err := readSplit(stored, int64(len(rows)))
	if err != nil {
		return err
	}
	size := splitHeaderBytes + bases
	if size > len(stored) {
		return corrupt("%d bases in %d bytes", bases, len(stored))
	}
	s.bases, stored = stored[splitHeaderBytes:size], stored[size:]
	sc := scratches.Get().(*scratch)
	defer scratches.Put(sc)
	return decodeBlocks(stored, rows, s.block(), func(stored, block []byte) (int, error) { return sc.decodeBlock(stored, block, s) })
}

// decodeBlocks fills rows from blocks, which are all that is stored.
func decodeBlocks(stored, rows []byte, blockBytes int, decode decoder) error {
	for block := range slices.Chunk(rows, blockBytes) {
		size, err := decode(stored, block)
		if err != nil {
			return err
		}
		stored = stored[size:]
	}
	if len(stored) > 0 {
		return corrupt("%d bytes are left", len(stored))
	}
	return nil
}

// decodeBlock fills a block, and returns its size in stored.
func (sc *scratch) decodeBlock(stored, block []byte, s split) (size int, err error) {
	sizes := s.planes(len(block))
	planes := [planesMax][]byte{sc.planes[0][:], sc.planes[1][:], sc.planes[2][:], sc.planes[3][:]}
	if size, err = sc.huffman.decodeAll(stored, &planes, sizes); err != nil {
		return 0, err
	}
	switch {
	case s.width == widthMax:
		merge4(block, planes, s.bases)
	case s.apart > 0:
		high := sc.planes[2][:sizes[2]]
		if &planes[2][0] != &high[0] { // a raw plane is in stored
			copy(high, planes[2])
		}
		putTogether(high, planes[1])
		merge2(block, planes[0], high, s.bases, s.rotate)
	default:
		merge2(block, planes[0], planes[1], s.bases, s.rotate)
	}
	return size, nil
}
