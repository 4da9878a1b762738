package encoding

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// quantized returns rows of a K/V cache in q8_0 (blocks of a f16 scale and 32 bytes) or q4_0 (a scale
// and 32 halves of bytes). biased channels differ in scale and have a mean of their own.
func quantized(bits, tokens, channels int, biased bool) (rows []byte, rowBytes int) {
	r := rand.New(rand.NewPCG(5, 5))
	scale, mean := make([]float64, channels), make([]float64, channels)
	for c := range scale {
		if scale[c] = 1; biased {
			scale[c] = math.Exp(0.7 * r.NormFloat64())
			mean[c] = 2 * r.NormFloat64() * scale[c]
		}
	}
	var block [32]float64
	for range tokens {
		for at := 0; at < channels; at += len(block) {
			largest := 0.0
			for i := range block {
				block[i] = r.NormFloat64()*scale[at+i] + mean[at+i]
				if math.Abs(block[i]) > math.Abs(largest) {
					largest = block[i]
				}
			}
			rows = appendQuantized(rows, bits, block, largest)
		}
	}
	return rows, len(rows) / tokens
}

func appendQuantized(rows []byte, bits int, block [32]float64, largest float64) []byte {
	if bits == 8 {
		step := math.Abs(largest) / 127
		rows = binary.LittleEndian.AppendUint16(rows, half(step))
		for _, x := range block {
			rows = append(rows, byte(int8(math.Round(x/step))))
		}
		return rows
	}
	step := largest / -8
	rows = binary.LittleEndian.AppendUint16(rows, half(step))
	for i := range 16 {
		low, high := min(15, int(block[i]/step+8.5)), min(15, int(block[i+16]/step+8.5))
		rows = append(rows, byte(low|high<<4))
	}
	return rows
}

// TestQuantizedRows: rows that are small already come back as they were.
func TestQuantizedRows(t *testing.T) {
	c := newCoder(t)
	for _, bits := range []int{8, 4} {
		for _, biased := range []bool{false, true} {
			rows, row := quantized(bits, 256, 1024, biased)
			id, stored := c.Lossless(rows, Shape{RowBytes: row})
			if id != Raw {
				requireExact(t, c, id, stored, rows, "%d bits, biased %v", bits, biased)
			}
			require.Equal(t, !biased, id == Raw, "Gaussian blocks that use their whole range stay raw")
		}
	}
}

func TestParseCold(t *testing.T) {
	for text, want := range map[string][2]ID{
		"q8_0": {Q8_0, Q8_0}, "q4_0": {Q4_0, Q4_0}, "int4": {Int4, Int4}, "q8_0,q4_0": {Q8_0, Q4_0}, " q8_0 , int4 ": {Q8_0, Int4},
	} {
		k, v, err := ParseCold(text)
		require.NoError(t, err, text)
		require.Equal(t, want, [2]ID{k, v}, text)
	}
	for _, text := range []string{"", ",", "q8_0,", ",q8_0", "q8_0,q4_0,int4", "raw", "zstd", "split", "Q8_0", "q8"} {
		k, v, err := ParseCold(text)
		require.ErrorContains(t, err, "q8_0, q4_0, int4", text)
		require.Equal(t, [2]ID{}, [2]ID{k, v})
	}
}

func TestLossyIDs(t *testing.T) {
	for id := range ID(255) {
		_, known := names[id]
		require.Equal(t, known, id.Known())
		require.Equal(t, id == Q8_0 || id == Q4_0 || id == Int4, id.Lossy(), id)
	}
	require.Equal(t, []ID{16, 17, 18}, lossyIDs, "they stand in files")
	require.Equal(t, "q8_0", Q8_0.String())
}
