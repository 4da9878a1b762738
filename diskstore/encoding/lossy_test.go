package encoding

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
)

var lossyIDs = []ID{Q8_0, Q4_0, Int4}

// halves converts f16 rows.
func halves(rows []byte) []float64 {
	x := make([]float64, len(rows)/2)
	for i := range x {
		x[i] = float64(float16.Frombits(binary.LittleEndian.Uint16(rows[2*i:])).Float32())
	}
	return x
}

// relativeError is the root of the squared error over that of the squares.
func relativeError(want, got []byte) float64 {
	sum, all := 0.0, 0.0
	w, g := halves(want), halves(got)
	for i := range w {
		sum += (w[i] - g[i]) * (w[i] - g[i])
		all += w[i] * w[i]
	}
	return math.Sqrt(sum / all)
}

func BenchmarkLossy(b *testing.B) {
	rows := gaussian("f16", 256, 1024, 2)
	c := newCoder(b)
	for _, id := range lossyIDs {
		stored, err := c.Lossy(id, rows, Shape{RowBytes: 2048})
		require.NoError(b, err)
		b.Run(id.String()+" encode", func(b *testing.B) {
			b.SetBytes(int64(len(rows)))
			for range b.N {
				if _, err := c.Lossy(id, rows, Shape{RowBytes: 2048}); err != nil {
					b.Fatal(err)
				}
			}
		})
		out := make([]byte, len(rows))
		b.Run(id.String()+" decode", func(b *testing.B) {
			b.SetBytes(int64(len(rows)))
			for range b.N {
				if err := c.Decode(id, stored, out); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(rows))/float64(len(stored)), "ratio")
			b.ReportMetric(relativeError(rows, out), "error")
			b.ReportMetric(float64(stored[0]), "arrangement")
		})
	}
}
