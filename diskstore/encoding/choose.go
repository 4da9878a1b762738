package encoding

import (
	"math"
	"math/bits"
)

const (
	// leastGain is the divisor of the rows' size that gives the least gain of an encoding.
	leastGain = 64
	// leastPlaneGain is that of a plane of Split in Huffman codes, which take most of the time of decoding. The
	// mantissas of a bf16 with its sign would make a section smaller by a percent, in twice the time.
	leastPlaneGain = 16

	// Of a long section a sample of this many pieces is measured.
	samplePieces = 8
	pieceBytes   = 2 << 10

	// sampleRows are the rows from which the usual byte of a channel is taken.
	sampleRows = 64
)

// choose returns the encoding that makes a sample of rows smallest, by the order-0 entropy of
// bytes, and for Split its way. It returns Raw where all gain a 64th or less.
func choose(rows []byte, s Shape) (ID, split) {
	if len(rows) < minBytes || repeats(rows) {
		return Zstd, split{}
	}
	best, id := 1-1.0/leastGain, Raw
	var all counts
	for _, piece := range pieces(len(rows)) {
		for _, b := range rows[piece.from:piece.to] {
			all[b]++
		}
	}
	if share := all.entropy() / 8; share < best {
		best, id = share, Zstd
	}
	if way, ok := bestSplit(rows, s, best); ok {
		return Split, way
	}
	return id, split{}
}

// bestSplit returns the way of Split that makes a sample of rows smallest, and false where none
// promises a share of the rows' size below a limit.
func bestSplit(rows []byte, s Shape, limit float64) (way split, ok bool) {
	for _, try := range []split{{width: 2, apart: apartBits}, {width: 2}, {width: 2, rotate: 1}, {width: 4}} {
		if len(rows)%try.width != 0 {
			continue
		}
		share := try.share(rows)
		switch {
		case try.width == widthMax:
			share += wideCost
		case ok && way.apart > 0 && try.rotate == 0:
			share += longCost
		}
		if share < limit {
			limit, way, ok = share, try, true
		}
	}
	if ok && way.fits(s.RowBytes, len(rows)) {
		based := way
		based.bases = way.basesOf(rows, s.RowBytes)
		if based.share(rows) < way.share(rows) {
			way = based
		}
	}
	return way, ok
}

// wideCost is the share that numbers of 4 bytes must gain over numbers of 2: two neighbours of 2
// bytes look like one of 4, which takes longer to put together.
const wideCost = 0.03

// longCost is the share that codes of whole highest bytes with a sign must gain over those without two
// bits: a look-up gives fewer of them.
const longCost = 0.01

// fits reports whether rows of a size, n bytes together, can have bases.
func (s split) fits(row, n int) bool {
	return row > 0 && row <= blockBytes && row%s.width == 0 && n%row == 0 && n >= minRows*row
}

// minBytes is the size of rows for which tables of codes pay. zstd tries smaller rows.
const minBytes = 1 << 10

// minRows is the number of rows for which bases pay: all rows share them.
const minRows = 16

type span struct{ from, to int }

// pieces returns the ranges of a sample of n bytes, at multiples of 8.
func pieces(n int) []span {
	if n <= samplePieces*pieceBytes {
		return []span{{0, n}}
	}
	out := make([]span, samplePieces)
	for i := range out {
		at := (n - pieceBytes) / (samplePieces - 1) * i &^ 7
		out[i] = span{at, at + pieceBytes}
	}
	return out
}

// repeats reports whether rows begin with repetitions, which zstd finds and an entropy does not show.
func repeats(rows []byte) bool {
	same, n := 0, min(len(rows)/2, pieceBytes)
	for _, distance := range []int{1, 4, 64} {
		equal := 0
		for i := distance; i < n; i++ {
			if rows[i] == rows[i-distance] {
				equal++
			}
		}
		same = max(same, equal)
	}
	return same > n*3/4
}

type counts [256]uint32

// entropy is the order-0 entropy, in bits per byte. A sample shows fewer values than there are;
// the second term makes up for that (Miller, "Note on the bias of information estimates", 1955).
func (c *counts) entropy() float64 {
	n, values, logs := 0.0, 0.0, 0.0
	for _, count := range c {
		if count > 0 {
			n += float64(count)
			values++
			logs += float64(count) * math.Log2(float64(count))
		}
	}
	return math.Log2(n) - logs/n + (values-1)/2*math.Log2E/n
}

// number returns the number at a place, rotated to the left.
func (s split) number(p []byte) uint32 {
	if s.width == 2 {
		return uint32(bits.RotateLeft16(uint16(p[0])|uint16(p[1])<<8, s.rotate))
	}
	return uint32(p[0]) | uint32(p[1])<<8 | uint32(p[2])<<16 | uint32(p[3])<<24
}

// share is the part of the rows' size that a sample promises.
func (s split) share(rows []byte) float64 {
	var planes [widthMax]counts
	high, apart := 8*(s.width-1), uint32(1)<<s.apart-1
	for _, piece := range pieces(len(rows)) {
		for at := piece.from; at+s.width <= piece.to; at += s.width {
			x := s.number(rows[at:])
			if len(s.bases) > 0 {
				x -= uint32(s.bases[at/s.width%len(s.bases)]) << high
			}
			x &^= apart << high
			for i := range s.width {
				planes[i][byte(x>>(8*i))]++
			}
		}
	}
	sum := float64(s.apart)
	for i := range s.width {
		h := planes[i].entropy()
		if h > 8*(1-1.0/leastPlaneGain) {
			h = 8 // the plane stays raw
		}
		sum += h
	}
	return sum/float64(8*s.width) + float64(len(s.bases))/float64(len(rows))
}

// basesOf returns the usual highest byte of each channel: the median of some rows, without a
// sign, and the sign that most of them have. A rotation takes the sign out of the byte. Bits that are
// stored apart are zero in a base.
func (s split) basesOf(rows []byte, row int) []byte {
	n := len(rows) / row
	step := max(1, n/sampleRows)
	magnitude := byte(0x7f)
	if s.rotate > 0 {
		magnitude = 0xff
	}
	bases := make([]byte, row/s.width)
	for c := range bases {
		var seen [256]uint16
		total, negative := 0, 0
		for r := 0; r < n; r += step {
			x := byte(s.number(rows[r*row+c*s.width:]) >> (8 * (s.width - 1)))
			seen[x&magnitude]++
			negative += int(x >> 7)
			total++
		}
		median := 0
		for below := int(seen[0]); 2*below < total; below += int(seen[median]) {
			median++
		}
		bases[c] = byte(median) &^ (1<<s.apart - 1)
		if s.rotate == 0 && 2*negative > total {
			bases[c] |= 0x80
		}
	}
	return bases
}
