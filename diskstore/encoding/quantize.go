package encoding

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/x448/float16"
)

// Numbers of a larger magnitude stay lossless, so that no scale, center or decoded number overflows.
const (
	largestGGML = 32768 // a scale is rounded up by at most a 2048th
	largestInt4 = 3072  // a rotation of rounding errors gives up to 19 times as much
)

// Lossy encodes rows of f16 as Q8_0, Q4_0 or Int4. The rows have a size in s. An error says why the
// rows have to stay lossless: a row that is no multiple of 32 numbers, a NaN, an infinite number or
// one of more than 32,768 (3,072 in Int4), or rows too few to become smaller.
func (c *Coder) Lossy(id ID, rows []byte, s Shape) (stored []byte, err error) {
	switch {
	case !id.Lossy():
		return nil, fmt.Errorf("encode %d bytes as %v: it is not lossy; use q8_0, q4_0 or int4", len(rows), id)
	case s.RowBytes <= 0 || s.RowBytes%(2*unit) != 0 || len(rows) == 0 || len(rows)%s.RowBytes != 0:
		return nil, fmt.Errorf("encode %d bytes as %v: rows of %d bytes are not f16 in blocks of %d; keep them lossless",
			len(rows), id, s.RowBytes, unit)
	}
	largest := float32(largestGGML)
	if id == Int4 {
		largest = largestInt4
	}
	if at := beyond(rows, largest); at >= 0 {
		return nil, fmt.Errorf("encode %d bytes as %v: number %d is NaN or larger than %v; keep them lossless",
			len(rows), id, at, largest)
	}
	q := quantizers.Get().(*quantizer)
	defer quantizers.Put(q)
	way := ggmls(id)
	if id == Int4 {
		way = q.chooseInt4(rows, s.RowBytes/2)
	}
	if stored = q.encode(rows, way); len(stored) >= len(rows) {
		return nil, fmt.Errorf("encode %d bytes as %v: they would take %d bytes; keep them lossless", len(rows), id, len(stored))
	}
	return stored, nil
}

// beyond returns the first number of rows that is NaN or of a larger magnitude, or -1.
func beyond(rows []byte, largest float32) int {
	// The bits of positive f16, NaN included, are in order.
	most := float16.Fromfloat32(largest).Bits()
	for i := 0; i+2 <= len(rows); i += 2 {
		if binary.LittleEndian.Uint16(rows[i:])&0x7fff > most {
			return i / 2
		}
	}
	return -1
}

type quantizer struct {
	lossyScratch
	x      [lossyBlock]float32
	q      [lossyBlock]byte // codes, one in a byte
	xq, qq [maxCenters]float32
	by     [maxCenters]float32 // the inverse of a scale
}

var quantizers = sync.Pool{New: func() any { return new(quantizer) }}

func (q *quantizer) encode(rows []byte, l lossy) []byte {
	out := make([]byte, lossyHeaderBytes, lossyHeaderBytes+len(l.centers)+len(rows)/2+len(rows)/16+64)
	out[0] = byte(l.arrangement)
	binary.LittleEndian.PutUint16(out[2:], uint16(l.group))
	binary.LittleEndian.PutUint32(out[4:], uint32(l.row))
	out = append(out, l.centers...)
	for block := range slices.Chunk(rows, l.block()) {
		out = q.huffman.encodeAll(out, q.quantize(block, l), leastGain)
	}
	return out
}

// quantize returns the planes of a block. They are valid until the next call.
func (q *quantizer) quantize(block []byte, l lossy) [][]byte {
	n := len(block) / 2
	x, codes := q.x[:n], q.q[:n]
	widen(x, block)
	if l.centered() {
		q.center(x, l)
	}
	if l.arrangement >= rotated {
		rotateAll(x)
	}
	switch {
	case l.arrangement == alongChannel:
		q.quantizeChannels(x, codes, l)
	case l.id == Q8_0:
		q.eachGroup(x, codes, l.group, quantizeQ8)
	case l.id == Q4_0:
		q.eachGroup(x, codes, l.group, quantizeQ4)
	default:
		q.eachGroup(x, codes, l.group, quantizeInt4)
	}
	scales := l.scales(n)
	planes := [][]byte{q.low[:scales], q.high[:scales], q.codes[:n/2], q.lower[:n/2]}
	if l.id == Q8_0 {
		pack8(planes[2], planes[3], codes)
		return planes
	}
	pack4(planes[2], codes)
	return planes[:planesMax-1]
}

func (q *quantizer) center(x []float32, l lossy) {
	for i := range l.row {
		q.centers[i] = float16.Frombits(binary.LittleEndian.Uint16(l.centers[2*i:])).Float32()
	}
	for row := range slices.Chunk(x, l.row) {
		for i, c := range q.centers[:l.row] {
			row[i] -= c
		}
	}
}

func (q *quantizer) eachGroup(x []float32, codes []byte, group int, quantize func(x []float32, codes []byte) float32) {
	for g := range len(x) / group {
		q.putScale(g, quantize(x[g*group:][:group], codes[g*group:][:group]))
	}
}

func (q *quantizer) putScale(i int, scale float32) {
	bits := float16.Fromfloat32(scale).Bits()
	q.low[i], q.high[i] = byte(bits), byte(bits>>8)
}

// quantizeQ8 does as ggml's quantize_row_q8_0_ref, with 128 added to codes.
func quantizeQ8(x []float32, codes []byte) (scale float32) {
	scale = largest(x) / 127
	by := inverse(scale)
	for i := codes8Fast(codes, x, by) * unit; i < len(x); i++ {
		codes[i] = byte(128 + roundHalfAway(float32(x[i]*by)))
	}
	return scale
}

// quantizeQ4 does as ggml's quantize_row_q4_0_ref.
func quantizeQ4(x []float32, codes []byte) (scale float32) {
	scale = firstLargest(x) / -8
	by := inverse(scale)
	for i := codes4Fast(codes, x, by) * unit; i < len(x); i++ {
		codes[i] = code(x[i], by)
	}
	return scale
}

func largest(x []float32) float32 {
	most, ok := largestFast(x)
	if !ok {
		for _, v := range x {
			most = max(most, abs(v))
		}
	}
	return most
}

// firstLargest returns the first number of the largest magnitude, or 0 without a sign.
func firstLargest(x []float32) float32 {
	most := largest(x)
	if most == 0 {
		return 0
	}
	for _, v := range x {
		if abs(v) == most {
			return v
		}
	}
	return 0
}

// quantizeInt4 does as quantizeQ4, and then takes the scale that fits the codes best: of the least
// sum of squared errors.
func quantizeInt4(x []float32, codes []byte) (scale float32) {
	scale = quantizeQ4(x, codes)
	xq, qq := float32(0), float32(0)
	for i, v := range x {
		q := float32(int(codes[i]) - 8)
		xq += float32(v * q)
		qq += float32(q * q)
	}
	return fitted(scale, xq, qq)
}

// quantizeChannels does as quantizeInt4 for the channels of each group of rows.
func (q *quantizer) quantizeChannels(x []float32, codes []byte, l lossy) {
	rows := len(x) / l.row
	groups := max(1, rows/l.group)
	for g := range groups {
		from, to := g*l.group*l.row, (g+1)*l.group*l.row
		if g == groups-1 {
			to = len(x)
		}
		q.quantizeRows(x[from:to], codes[from:to], l.row, g*l.row)
	}
}

// quantizeRows quantizes one group of rows, whose scales begin at a place.
func (q *quantizer) quantizeRows(x []float32, codes []byte, row, place int) {
	signed, by, xq, qq := q.scales[:row], q.by[:row], q.xq[:row], q.qq[:row]
	clear(signed)
	clear(xq)
	clear(qq)
	for r := range slices.Chunk(x, row) {
		larger(signed, r)
	}
	for c := range row {
		signed[c] /= -8
		by[c] = inverse(signed[c])
	}
	for at := 0; at < len(x); at += row {
		fit4(codes[at:at+row], x[at:at+row], by, xq, qq)
	}
	for c, scale := range signed {
		q.putScale(place+c, fitted(scale, xq[c], qq[c]))
	}
}

// larger keeps the number of the larger magnitude of each channel.
func larger(signed, x []float32) {
	for c := largerFast(signed, x); c < len(x); c++ {
		if abs(signed[c]) < abs(x[c]) {
			signed[c] = x[c]
		}
	}
}

// fit4 makes the codes of a row, and adds number times code and code times code to the sums of each channel.
func fit4(codes []byte, x, by, xq, qq []float32) {
	for c := fit4Fast(codes, x, by, xq, qq); c < len(x); c++ {
		codes[c] = code(x[c], by[c])
		q := float32(int(codes[c]) - 8)
		xq[c] += float32(x[c] * q)
		qq[c] += float32(q * q)
	}
}

// code returns the code of 4 bits for a number.
func code(v, by float32) byte { return byte(min(15, int(float32(v*by)+8.5))) }

func inverse(scale float32) float32 {
	if scale == 0 {
		return 0
	}
	return 1 / scale
}

// fitted returns the scale with which codes fit best, of the sums of number times code and of code
// times code.
func fitted(scale, xq, qq float32) float32 {
	if qq == 0 {
		return scale
	}
	return xq / qq
}

// roundHalfAway does as C's roundf, for numbers that an int holds.
func roundHalfAway(v float32) int { return int(float64(v) + math.Copysign(0.5, float64(v))) }

func abs(v float32) float32 { return math.Float32frombits(math.Float32bits(v) &^ (1 << 31)) }

// pack4 puts two codes of 4 bits into a byte, as the format says.
func pack4(packed, codes []byte) {
	const half = unit / 2
	for u := 0; u < len(codes); u += unit {
		for i := range half {
			packed[u/2+i] = codes[u+i] | codes[u+half+i]<<4
		}
	}
}

// pack8 does as pack4 for the upper and the lower halves of codes of 8 bits.
func pack8(upper, lower, codes []byte) {
	const half = unit / 2
	for u := 0; u < len(codes); u += unit {
		for i := range half {
			a, b := codes[u+i], codes[u+half+i]
			upper[u/2+i], lower[u/2+i] = a>>4|b&0xf0, a&0xf|b<<4
		}
	}
}
