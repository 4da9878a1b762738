package encoding

import (
	"encoding/binary"
	"math"

	"github.com/x448/float16"
)

const (
	// int4SampleRows are the rows, from the middle of a section, on which arrangements are tried.
	int4SampleRows = 64

	// int4Bits is the most that an arrangement may take for a number, scales and centers included.
	int4Bits = 5
)

// chooseInt4 returns the arrangement with the least squared error on a sample of the rows, which
// have a number of channels. A bit more for a number has to take three quarters of the squared error
// away, as it does by halving the step.
func (q *quantizer) chooseInt4(rows []byte, channels int) lossy {
	n := len(rows) / 2 / channels // rows
	part := sampleOf(rows, 2*channels)
	numbers := len(part) / 2
	best, least := lossy{}, math.Inf(1)
	for _, way := range int4Ways(channels, q.means(rows, channels)) {
		bits := 4 + 16*float64(way.scales(numbers))/float64(numbers)
		if len(way.centers) > 0 {
			bits += 16 / float64(n)
		}
		if bits > int4Bits && least < math.Inf(1) {
			continue
		}
		// A section of zeros has no error, and takes the fewest bits.
		if cost := (q.squaredError(part, way) + math.SmallestNonzeroFloat32) * math.Pow(4, bits); cost < least {
			best, least = way, cost
		}
	}
	return best
}

// sampleOf returns rows from the middle that are one block, or a block of a longer row.
func sampleOf(rows []byte, row int) []byte {
	if row > 2*lossyBlock {
		return rows[:2*lossyBlock]
	}
	n := len(rows) / row
	sample := min(n, int4SampleRows, 2*lossyBlock/row)
	return rows[(n-sample)/2*row:][:sample*row]
}

func int4Ways(channels int, centers []byte) []lossy {
	group := rotation
	if channels%rotation != 0 {
		group = unit
	}
	ways := []lossy{{id: Int4, group: group}}
	for _, rows := range []int{rotation, unit} {
		if channels*rows <= lossyBlock {
			ways = append(ways, lossy{id: Int4, arrangement: alongChannel, group: rows, row: channels, centers: centers})
			break
		}
	}
	if group == rotation {
		ways = append(ways, lossy{id: Int4, arrangement: rotated, group: group})
		if len(centers) > 0 {
			ways = append(ways, lossy{id: Int4, arrangement: rotatedCentered, group: group, row: channels, centers: centers})
		}
	}
	return ways
}

// means returns the mean of each channel, as f16, or nil for rows too long to have centers.
func (q *quantizer) means(rows []byte, channels int) []byte {
	if channels > maxCenters {
		return nil
	}
	sums := make([]float64, channels)
	n := len(rows) / 2 / channels
	for r := range n {
		x := q.x[:channels]
		widen(x, rows[2*r*channels:])
		for c, v := range x {
			sums[c] += float64(v)
		}
	}
	means := make([]byte, 0, 2*channels)
	for _, sum := range sums {
		means = binary.LittleEndian.AppendUint16(means, float16.Fromfloat32(float32(sum/float64(n))).Bits())
	}
	return means
}

// squaredError returns the sum of squared errors of some rows that are one block.
func (q *quantizer) squaredError(rows []byte, way lossy) float64 {
	planes := q.quantize(rows, way)
	if err := q.readScales(planes[0], planes[1]); err != nil {
		return math.Inf(1)
	}
	got := make([]byte, len(rows))
	q.dequantize(got, planes[2], nil, way)
	var want, have [unit]float32
	sum := 0.0
	for at := 0; at < len(rows); at += 2 * unit {
		widen(want[:], rows[at:])
		widen(have[:], got[at:])
		for i := range want {
			d := float64(want[i] - have[i])
			sum += float64(d * d)
		}
	}
	return sum
}
