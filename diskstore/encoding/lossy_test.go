package encoding

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/diskstore/internal/testrows"
)

var lossyIDs = []ID{Q8_0, Q4_0, Int4}

// waysOf returns every lossy way for rows.
func waysOf(rows []byte, rowBytes int) []lossy {
	q := new(quantizer)
	return append([]lossy{ggmls(Q8_0), ggmls(Q4_0)}, int4Ways(rowBytes/2, q.means(rows, rowBytes/2))...)
}

// lossyOf encodes rows of a size.
func lossyOf(t *testing.T, c *Coder, id ID, rows []byte, rowBytes int) []byte {
	t.Helper()
	stored, err := c.Lossy(id, rows, Shape{RowBytes: rowBytes})
	require.NoError(t, err, id)
	return stored
}

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

// keys are rows as K has them: each channel has a mean and a scale.
func keys(tokens, channels int) []byte {
	r := rand.New(rand.NewPCG(4, 4))
	means, scales := make([]float64, channels), make([]float64, channels)
	for c := range means {
		means[c], scales[c] = 4*r.NormFloat64(), math.Exp(r.NormFloat64())
	}
	var rows []byte
	for range tokens {
		for c := range channels {
			rows = binary.LittleEndian.AppendUint16(rows, float16.Fromfloat32(float32(means[c]+scales[c]*r.NormFloat64())).Bits())
		}
	}
	return rows
}

// values are rows as V has them: alike in all channels.
func values(tokens, channels int) []byte {
	r := rand.New(rand.NewPCG(6, 6))
	var rows []byte
	for range tokens * channels {
		rows = binary.LittleEndian.AppendUint16(rows, float16.Fromfloat32(float32(r.NormFloat64())).Bits())
	}
	return rows
}

// lossySizes are tokens and channels: sections of one block and of several, and a block's rest.
var lossySizes = [][2]int{
	{1, 32}, {1, 64}, {3, 96}, {31, 64}, {33, 160}, {63, 64}, {65, 64}, {127, 32}, {129, 128},
	{200, 4096}, {257, 1024}, {700, 192}, {5000, 64}, {40, 8192}, {20, 16384}, {2, 262144},
}

// TestEveryWayDecodesAsDocumented compares all arrangements with the second reader.
func TestEveryWayDecodesAsDocumented(t *testing.T) {
	c := newCoder(t)
	for _, size := range lossySizes {
		rows := keys(size[0], size[1])
		for _, way := range waysOf(rows, 2*size[1]) {
			stored := new(quantizer).encode(rows, way)
			want := refDecode(t, way.id, stored, len(rows))
			got, err := decodeAndCheck(t, c, way.id, stored, len(rows))
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got), "%v %v %d", size, way.id, way.arrangement)
		}
	}
}

// TestErrorsAreBounded: no number differs by more than a step of its group allows.
func TestErrorsAreBounded(t *testing.T) {
	c := newCoder(t)
	for _, rows := range [][]byte{keys(256, 128), values(256, 128), gaussian("f16", 100, 128, 3)} {
		for id, levels := range map[ID]float64{Q8_0: 127, Q4_0: 8} {
			stored := lossyOf(t, c, id, rows, 256)
			got := decoded(t, c, id, stored, len(rows))
			w, g := halves(rows), halves(got)
			for at := 0; at < len(w); at += 32 {
				most := 0.0
				for _, x := range w[at : at+32] {
					most = max(most, math.Abs(x))
				}
				// In Q4_0 the largest number of the other sign is a whole step away.
				step := map[ID]float64{Q8_0: 0.5, Q4_0: 1}[id]
				for i := at; i < at+32; i++ {
					require.LessOrEqual(t, math.Abs(w[i]-g[i]), (step+0.1)*most/levels+1e-6, "%v %d", id, i)
				}
			}
		}
	}
}

// TestInt4Chooses: K gets groups of a channel or centers, V does not, and both have a smaller error
// and fewer bytes than Q4_0 gives.
func TestInt4Chooses(t *testing.T) {
	c := newCoder(t)
	for name, tc := range map[string]struct {
		rows     []byte
		centered bool
	}{
		"K": {keys(256, 256), true}, "V": {values(256, 256), false}, "zero": {make([]byte, 1<<16), false},
		"K of few rows": {keys(5, 256), false},
	} {
		stored := lossyOf(t, c, Int4, tc.rows, 512)
		arrangement := int(stored[0])
		require.Equal(t, tc.centered, arrangement == alongChannel || arrangement == rotatedCentered, name)
		got := decoded(t, c, Int4, stored, len(tc.rows))
		if name == "zero" {
			require.Equal(t, make([]float64, len(tc.rows)/2), halves(got))
			continue
		}
		q4 := lossyOf(t, c, Q4_0, tc.rows, 512)
		other := decoded(t, c, Q4_0, q4, len(tc.rows))
		if tc.centered {
			require.Less(t, relativeError(tc.rows, got), relativeError(tc.rows, other)/2, name)
		}
		require.Less(t, relativeError(tc.rows, got), 0.15, name)
	}
}

// TestRatios: the sizes that are promised, for rows as K and V have them.
func TestRatios(t *testing.T) {
	c := newCoder(t)
	for id, least := range map[ID]float64{Q8_0: 1.9, Q4_0: 3.7, Int4: 3.8} {
		for name, rows := range map[string][]byte{"K": keys(256, 256), "V": values(256, 256)} {
			stored := lossyOf(t, c, id, rows, 512)
			require.Greater(t, float64(len(rows))/float64(len(stored)), least, "%v %s", id, name)
		}
	}
}

// TestLossyRefuses: rows that would lose more than precision stay lossless.
func TestLossyRefuses(t *testing.T) {
	c := newCoder(t)
	for _, id := range lossyIDs {
		for name, bits := range map[string]uint16{"NaN": 0x7e00, "-NaN": 0xfe01, "Inf": 0x7c00, "-Inf": 0xfc00, "large": 0xf801} {
			for _, at := range []int{0, 1000, len(values(20, 64))/2 - 1} {
				rows := values(20, 64)
				binary.LittleEndian.PutUint16(rows[2*at:], bits)
				_, err := c.Lossy(id, rows, Shape{RowBytes: 128})
				require.ErrorContains(t, err, "lossless", "%v %s", id, name)
			}
		}
		for _, bad := range []struct{ n, row int }{{128, 0}, {128, -128}, {100, 100}, {0, 128}, {192, 128}, {96, 32}, {66, 66}} {
			_, err := c.Lossy(id, make([]byte, bad.n), Shape{RowBytes: bad.row})
			require.ErrorContains(t, err, "lossless", "%v %v", id, bad)
		}
		// Subnormal numbers are encoded, and lose little.
		rows := make([]byte, 1<<13)
		for i := 0; i < len(rows); i += 2 {
			binary.LittleEndian.PutUint16(rows[i:], uint16(i%0x400)|uint16(i%3)<<15)
		}
		stored := lossyOf(t, c, id, rows, 128)
		got := decoded(t, c, id, stored, len(rows))
		for i, w := range halves(rows) {
			require.InDelta(t, w, halves(got)[i], 2e-5, id)
		}
	}
	for _, id := range []ID{Raw, Zstd, Split, 77} {
		_, err := c.Lossy(id, values(20, 64), Shape{RowBytes: 128})
		require.ErrorContains(t, err, "use q8_0")
	}
}

// TestNothingOverflows: rows of the largest numbers that are taken decode to finite ones, in the
// arrangement that adds up most.
func TestNothingOverflows(t *testing.T) {
	c := newCoder(t)
	rapid.Check(t, func(rt *rapid.T) {
		channels := 64 * rapid.IntRange(1, 3).Draw(rt, "channels")
		tokens := rapid.IntRange(1, 70).Draw(rt, "tokens")
		choices := rapid.SliceOfN(rapid.SampledFrom([]float32{1, -1, 0.53, -0.53, 0, 0.999}), 64, 64).Draw(rt, "numbers")
		for _, id := range lossyIDs {
			largest := map[ID]float32{Q8_0: largestGGML, Q4_0: largestGGML, Int4: largestInt4}[id]
			var rows []byte
			for i := range tokens * channels {
				x := choices[(i+i/channels)%len(choices)]
				rows = binary.LittleEndian.AppendUint16(rows, float16.Fromfloat32(x*largest).Bits())
			}
			require.Equal(rt, -1, beyond(rows, largest))
			for _, way := range waysOf(rows, 2*channels) {
				if way.id != id {
					continue
				}
				got := decoded(rt, c, id, new(quantizer).encode(rows, way), len(rows))
				for i, x := range halves(got) {
					require.False(rt, math.IsInf(x, 0) || math.IsNaN(x), "%v %d: number %d", id, way.arrangement, i)
				}
			}
		}
	})
}

// TestPlainLossyCodeAgrees: the plain code and that of the processor do the same with any codes,
// scales and centers, also in the last bytes of their memory.
func TestPlainLossyCodeAgrees(t *testing.T) {
	floats := func(rt *rapid.T, n int, name string) []float32 {
		x := make([]float32, n)
		for i, bits := range rapid.SliceOfN(rapid.Uint16(), n, n).Draw(rt, name) {
			if half := float16.Frombits(bits); half.IsFinite() {
				x[i] = half.Float32()
			}
		}
		return x
	}
	rapid.Check(t, func(rt *rapid.T) {
		n := rotation * rapid.IntRange(0, 5).Draw(rt, "rotations")
		codes := rapid.SliceOfN(rapid.Byte(), n, n).Draw(rt, "codes")
		scales, centers := floats(rt, n, "scales"), floats(rt, n, "centers")
		all := func() (rows [4][]byte, x []float32) {
			for i := range rows {
				rows[i] = make([]byte, 2*n)
			}
			dequantize8(rows[0], codes[:n/2], codes[n/2:], scales[:n/unit])
			dequantize4(rows[1], codes[:n/2], scales[:n/unit])
			dequantizeChannels(rows[2], codes[n/2:], scales, centers)
			dequantizeRotated(rows[3], codes[n/2:], scales[:n/rotation], centers)
			x = make([]float32, n)
			widen(x, rows[0])
			return rows, x
		}
		fast, wide := all()
		defer plain()()
		slow, plain := all()
		require.Equal(rt, slow, fast)
		require.Equal(rt, plain, wide)
	})
}

// TestPlainQuantizersAgree: both make the same codes and scales, of every f16.
func TestPlainQuantizersAgree(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		channels := unit * rapid.IntRange(1, 5).Draw(rt, "channels")
		tokens := rapid.IntRange(1, 70).Draw(rt, "tokens")
		largest := rapid.SampledFrom([]float32{largestInt4, largestGGML}).Draw(rt, "largest")
		some := rapid.SliceOfN(rapid.Uint16Range(0, float16.Fromfloat32(largest).Bits()), 1, 200).Draw(rt, "numbers")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		var rows []byte
		for range tokens * channels {
			rows = binary.LittleEndian.AppendUint16(rows, some[r.IntN(len(some))]|uint16(r.IntN(2))<<15)
		}
		require.Equal(rt, -1, beyond(rows, largest))
		for _, way := range waysOf(rows, 2*channels) {
			if way.id == Int4 && largest > largestInt4 {
				continue
			}
			fast := new(quantizer).encode(rows, way)
			again := plain()
			slow := new(quantizer).encode(rows, way)
			again()
			require.True(rt, bytes.Equal(slow, fast), "%v %d", way.id, way.arrangement)
		}
	})
}

func TestLossyDamage(t *testing.T) {
	rows := keys(35, 64)
	for _, way := range waysOf(rows, 128) {
		stored := new(quantizer).encode(rows, way)
		try := testDamage(t, way.id, stored, len(rows), func(hostile []byte, n int) []byte { return refDecode(t, way.id, hostile, n) })
		for at := range lossyHeaderBytes {
			for bit := range 8 {
				hostile := bytes.Clone(stored)
				hostile[at] ^= 1 << bit
				err := try(hostile, len(rows))
				// Another arrangement of Int4 may be right, and gives other rows.
				require.True(t, err != nil || way.id == Int4 && at == 0, "%v %d: bit %d of byte %d", way.id, way.arrangement, bit, at)
			}
		}
	}
}

// TestScalesAreFinite: a scale or center that is not finite is found.
func TestScalesAreFinite(t *testing.T) {
	c := newCoder(t)
	rows := values(1, 64)
	stored := new(quantizer).encode(rows, ggmls(Q4_0))
	require.Len(t, stored, 8+12+2*18, "all planes are raw")
	high := stored[8+12+2:]
	high[0] = 0x7c
	require.ErrorIs(t, c.Decode(Q4_0, stored, make([]byte, 128)), ErrCorrupt)

	rows = keys(70, 64)
	for _, way := range waysOf(rows, 128) {
		if way.centered() {
			stored := new(quantizer).encode(rows, way)
			stored[8+2*63+1] |= 0x7c
			require.ErrorIs(t, c.Decode(Int4, stored, make([]byte, len(rows))), ErrCorrupt)
		}
	}
}

// The same rows give the same bytes: copies of a page in two tiers are compared by their checksums.
func TestLossyIsDeterministic(t *testing.T) {
	c := newCoder(t)
	rows := keys(256, 128)
	for _, id := range lossyIDs {
		first := lossyOf(t, c, id, rows, 256)
		lossyOf(t, c, id, values(300, 64), 128)
		again := lossyOf(t, c, id, rows, 256)
		require.Equal(t, first, again, id)
		undo := plain()
		again = lossyOf(t, c, id, rows, 256)
		undo()
		require.Equal(t, first, again, "%v without the code of the processor", id)
	}
}

// TestLossyMemoryIsBounded: decoding and checking allocate for one block, not for the section.
func TestLossyMemoryIsBounded(t *testing.T) {
	c := newCoder(t)
	rows := values(8192, 256)
	for _, id := range lossyIDs {
		stored := lossyOf(t, c, id, rows, 512)
		both := func() {
			require.NoError(t, c.Decode(id, stored, rows))
			require.NoError(t, Check(id, bytes.NewReader(stored), int64(len(rows))))
		}
		both() // takes the memory of a block
		require.Less(t, testrows.Allocated(both), uint64(2<<20), id)
	}
}

// TestScales: ggml gives zeros the scale -0, and the scale of Int4 fits its codes better than
// that of Q4_0.
func TestScales(t *testing.T) {
	x, codes := make([]float32, unit), make([]byte, unit)
	x[0] = float32(math.Copysign(0, -1))
	scale := quantizeQ4(x, codes)
	require.True(t, scale == 0 && math.Signbit(float64(scale)))

	widen(x, values(1, unit))
	squares := func(scale float32) (sum float64) {
		for i, v := range x {
			d := float64(v - scale*float32(int(codes[i])-8))
			sum += d * d
		}
		return sum
	}
	first := squares(quantizeQ4(x, codes))
	require.Less(t, squares(quantizeInt4(x, codes)), first)
}

// TestInt4TakesSmallerNumbers: a rotation of larger ones could overflow.
func TestInt4TakesSmallerNumbers(t *testing.T) {
	rows := values(20, 64)
	binary.LittleEndian.PutUint16(rows[100:], float16.Fromfloat32(-largestInt4).Bits())
	_, err := newCoder(t).Lossy(Int4, rows, Shape{RowBytes: 128})
	require.NoError(t, err)
	binary.LittleEndian.PutUint16(rows[100:], float16.Fromfloat32(-largestInt4).Bits()+1)
	_, err = newCoder(t).Lossy(Int4, rows, Shape{RowBytes: 128})
	require.ErrorContains(t, err, "3072")
}

// TestDamageLeavesNoTrace: memory that has decoded damaged planes encodes and decodes as new memory
// does. Tables of Huffman codes stay in it.
func TestDamageLeavesNoTrace(t *testing.T) {
	rows := keys(300, 64)
	r := rand.New(rand.NewPCG(3, 3))
	used := new(quantizer)
	for _, way := range waysOf(rows, 128) {
		want, got := make([]byte, len(rows)), make([]byte, len(rows))
		stored := new(quantizer).encode(rows, way)
		require.NoError(t, decodeLossy(way.id, stored, want))
		planes := stored[lossyHeaderBytes+len(way.centers):]
		for range 200 {
			hostile := bytes.Clone(planes)
			for range 1 + r.IntN(5) {
				hostile[r.IntN(1+r.IntN(len(hostile)))] = byte(r.Uint32())
			}
			if _, err := used.decodeBlock(hostile, got, way); err != nil {
				require.ErrorIs(t, err, ErrCorrupt)
			}
			require.True(t, bytes.Equal(stored, used.encode(rows, way)), "%v %d", way.id, way.arrangement)
			_, err := used.decodeBlock(planes, got, way)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got), "%v %d", way.id, way.arrangement)
		}
	}
}
