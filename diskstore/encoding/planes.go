package encoding

import (
	"encoding/binary"
	"math/bits"
)

var noBases [4096]byte

// rowOf returns the bases of a row. Rows without bases are cut anywhere, and get zeros.
func rowOf(bases []byte) []byte {
	if len(bases) == 0 {
		return noBases[:]
	}
	return bases
}

// split2 takes numbers of 2 bytes apart: lo and hi get the bytes of each number, rotated to the
// left, and hi without the number's base. lo and hi have half the length of rows.
func split2(rows, lo, hi, bases []byte, rotate int) {
	bases = rowOf(bases)
	for len(lo) > 0 {
		n := min(len(bases), len(lo))
		done := split2Fast(rows[:2*n], lo[:n], hi[:n], bases[:n], rotate)
		for i := done; i < n; i++ {
			x := bits.RotateLeft16(binary.LittleEndian.Uint16(rows[2*i:]), rotate)
			lo[i], hi[i] = byte(x), byte(x>>8)-bases[i]
		}
		lo, hi, rows = lo[n:], hi[n:], rows[2*n:]
	}
}

// merge2 undoes split2. lo and hi may be longer than half of rows.
func merge2(rows, lo, hi, bases []byte, rotate int) {
	bases = rowOf(bases)
	for len(rows) > 0 {
		n := min(len(bases), len(rows)/2)
		done := merge2Fast(rows[:2*n], lo[:n], hi[:n], bases[:n], rotate)
		for i := done; i < n; i++ {
			x := uint16(lo[i]) | uint16(hi[i]+bases[i])<<8
			binary.LittleEndian.PutUint16(rows[2*i:], bits.RotateLeft16(x, -rotate))
		}
		lo, hi, rows = lo[n:], hi[n:], rows[2*n:]
	}
}

// split4 does as split2 for numbers of 4 bytes, which are not rotated.
func split4(planes [planesMax][]byte, rows, bases []byte) {
	bases = rowOf(bases)
	for i := range len(rows) / 4 {
		for p := range 3 {
			planes[p][i] = rows[4*i+p]
		}
		planes[3][i] = rows[4*i+3] - bases[i%len(bases)]
	}
}

func merge4(rows []byte, planes [planesMax][]byte, bases []byte) {
	bases = rowOf(bases)
	a, b, c, d := planes[0], planes[1], planes[2], planes[3]
	for i := range len(rows) / 4 {
		high := d[i] + bases[i%len(bases)]
		binary.LittleEndian.PutUint32(rows[4*i:], uint32(a[i])|uint32(b[i])<<8|uint32(c[i])<<16|uint32(high)<<24)
	}
}

// A group is 32 numbers, whose bits that are stored apart fill 8 bytes.
const (
	groupNumbers = 32
	groupBytes   = groupNumbers * apartBits / 8
	apartMask    = 0x0303030303030303 // the bits of 8 numbers
)

// apartBytes is the size of the plane of bits that n numbers store apart.
func apartBytes(n int) int { return (n + groupNumbers - 1) / groupNumbers * groupBytes }

// takeApart moves the lowest bits of the bytes of high to apart.
func takeApart(high, apart []byte) {
	for ; len(high) >= groupNumbers; high, apart = high[groupNumbers:], apart[groupBytes:] {
		var group uint64
		for j := range groupNumbers / groupBytes {
			x := binary.LittleEndian.Uint64(high[groupBytes*j:])
			group |= x & apartMask << (apartBits * j)
			binary.LittleEndian.PutUint64(high[groupBytes*j:], x&^apartMask)
		}
		binary.LittleEndian.PutUint64(apart, group)
	}
	clear(apart)
	for i, b := range high {
		apart[i%groupBytes] |= b & 3 << (apartBits * (i / groupBytes))
		high[i] = b &^ 3
	}
}

func putTogether(high, apart []byte) {
	done := putTogetherFast(high, apart)
	high, apart = high[done:], apart[apartBytes(done):]
	for ; len(high) >= groupNumbers; high, apart = high[groupNumbers:], apart[groupBytes:] {
		group := binary.LittleEndian.Uint64(apart)
		for j := range groupNumbers / groupBytes {
			x := binary.LittleEndian.Uint64(high[groupBytes*j:])
			binary.LittleEndian.PutUint64(high[groupBytes*j:], x|group>>(apartBits*j)&apartMask)
		}
	}
	for i := range high {
		high[i] |= apart[i%groupBytes] >> (apartBits * (i / groupBytes)) & 3
	}
}
