package encoding

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
	"pgregory.net/rapid"
)

// testMax is the limit of a decoder in tests.
const testMax = 1 << 26

func newCoder(t testing.TB) *Coder {
	c, err := NewCoder(testMax)
	require.NoError(t, err)
	return c
}

// canary stands before and after rows that are decoded.
const canary = 0xa5

// decodeGuarded decodes n bytes, and fails the test for a write outside of them.
func decodeGuarded(t require.TestingT, c *Coder, id ID, stored []byte, n int) ([]byte, error) {
	const guard = 64
	buf := make([]byte, n+2*guard)
	for i := range buf {
		buf[i] = canary
	}
	rows := buf[guard : guard+n : guard+n]
	err := c.Decode(id, stored, rows)
	for i := range guard {
		require.EqualValues(t, canary, buf[i])
		require.EqualValues(t, canary, buf[guard+n+i])
	}
	return rows, err
}

// decodeAndCheck decodes a section of Split or a lossy encoding, and requires that checking agrees.
func decodeAndCheck(t require.TestingT, c *Coder, id ID, stored []byte, n int) ([]byte, error) {
	rows, err := decodeGuarded(t, c, id, stored, n)
	in := bytes.NewReader(stored)
	checked := Check(id, in, int64(n))
	require.Equal(t, err == nil, checked == nil && in.Len() == 0, "decoding: %v, checking: %v", err, checked)
	if err != nil {
		require.ErrorIs(t, err, ErrCorrupt)
	}
	return rows, err
}

// decoded is what decodeGuarded decodes without an error.
func decoded(t require.TestingT, c *Coder, id ID, stored []byte, n int) []byte {
	rows, err := decodeGuarded(t, c, id, stored, n)
	require.NoError(t, err, "%v of %d bytes", id, n)
	return rows
}

// half converts to f16, without rounding to nearest: the tests need bits, not values.
func half(x float64) uint16 {
	b := math.Float32bits(float32(x))
	sign, exp, mantissa := uint16(b>>16)&0x8000, int(b>>23&0xff)-127+15, uint16(b>>13)&0x3ff
	switch {
	case exp <= 0:
		return sign
	case exp >= 31:
		return sign | 0x7c00
	}
	return sign | uint16(exp)<<10 | mantissa
}

// gaussian returns rows of f16, bf16 or f32 numbers with a scale and a sign for each channel.
func gaussian(kind string, tokens, channels int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	scale := make([]float64, channels)
	for c := range scale {
		scale[c] = math.Exp(r.NormFloat64())
	}
	var out []byte
	for range tokens {
		for c := range channels {
			x := r.NormFloat64()*scale[c] + scale[c]
			switch kind {
			case "f16":
				out = binary.LittleEndian.AppendUint16(out, half(x))
			case "bf16":
				out = binary.LittleEndian.AppendUint16(out, uint16(math.Float32bits(float32(x))>>16))
			default:
				out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(x)))
			}
		}
	}
	return out
}

// contents are rows of several kinds, for a width.
func contents(width, tokens, channels int) map[string][]byte {
	n := width * tokens * channels
	random, zero, special := make([]byte, n), make([]byte, n), make([]byte, n)
	r := rand.New(rand.NewPCG(7, 7))
	for i := range random {
		random[i] = byte(r.Uint32())
	}
	values := []uint16{0x7e01, 0xfe01, 0x7c00, 0xfc00, 0x0001, 0x8001, 0x8000, 0x03ff, 0x7bff, 0xffff}
	for i := 0; i+2 <= n; i += 2 {
		binary.LittleEndian.PutUint16(special[i:], values[r.IntN(len(values))])
	}
	kind := map[int]string{2: "f16", 4: "f32"}[width]
	out := map[string][]byte{"random": random, "zero": zero, "NaN, infinite, subnormal": special, kind: gaussian(kind, tokens, channels, 3)}
	if width == 2 {
		out["bf16"] = gaussian("bf16", tokens, channels, 3)
	}
	return out
}

// sizes are tokens and channels, odd ones among them.
var sizes = [][2]int{{1, 1}, {1, 64}, {3, 5}, {16, 33}, {17, 64}, {255, 31}, {256, 64}, {256, 192}, {256, 1024}, {4096, 48}, {2, 70000}, {33, 40000}}

func TestEveryWayIsExact(t *testing.T) {
	c := newCoder(t)
	for _, size := range sizes {
		for _, width := range []int{2, 4} {
			for name, rows := range contents(width, size[0], size[1]) {
				row := size[1] * width
				for _, way := range allSplits {
					if len(rows)%way.width != 0 {
						continue
					}
					if way.width == width && row <= blockBytes {
						based := way
						based.bases = based.basesOf(rows, row)
						requireExact(t, c, Split, based.encode(rows), rows, "%s %v %d with bases", name, size, way)
					}
					requireExact(t, c, Split, way.encode(rows), rows, "%s %v %v", name, size, way)
				}
				requireExact(t, c, Zstd, c.EncodeZstd(rows), rows, "%s %v", name, size)
				id, stored := c.Lossless(rows, Shape{RowBytes: row})
				if id == Raw {
					require.Nil(t, stored)
					continue
				}
				require.Less(t, len(stored), len(rows))
				requireExact(t, c, id, stored, rows, "%s %v", name, size)
			}
		}
	}
}

// The same rows give the same bytes, also in memory that other rows have used: copies of a page in
// two tiers are compared by their checksums.
func TestEncodingIsDeterministic(t *testing.T) {
	c := newCoder(t)
	first := make(map[string][]byte)
	for range 3 {
		for _, kind := range []string{"f16", "bf16", "f32"} {
			rows := gaussian(kind, 256, 64, 4)
			id, stored := c.Lossless(rows, Shape{RowBytes: len(rows) / 256})
			require.Equal(t, Split, id)
			if want, ok := first[kind]; ok {
				require.Equal(t, want, stored, kind)
			}
			first[kind] = stored
			c.Lossless(contents(2, 64, 64)["NaN, infinite, subnormal"], Shape{RowBytes: 128})
		}
	}
	defer plain()()
	rows := gaussian("f16", 256, 64, 4)
	_, stored := c.Lossless(rows, Shape{RowBytes: 128})
	require.Equal(t, first["f16"], stored, "without the code of the processor")
}

func requireExact(t require.TestingT, c *Coder, id ID, stored, rows []byte, format string, args ...any) {
	got, err := decodeGuarded(t, c, id, stored, len(rows))
	what := fmt.Sprintf(format, args...)
	require.NoError(t, err, what)
	require.Equal(t, string(rows), string(got), what)
}

// Each kind of number has the encoding that its exponents promise.
func TestTheChoice(t *testing.T) {
	c := newCoder(t)
	for kind, most := range map[string]float64{"f16": 1 / 1.18, "bf16": 1 / 1.45, "f32": 0.88} {
		rows := gaussian(kind, 256, 256, 5)
		id, stored := c.Lossless(rows, Shape{RowBytes: len(rows) / 256})
		require.Equal(t, Split, id, kind)
		require.Less(t, float64(len(stored))/float64(len(rows)), most, kind)
	}
	random := contents(2, 256, 256)["random"]
	id, stored := c.Lossless(random, Shape{RowBytes: 512})
	require.Equal(t, Raw, id)
	require.Nil(t, stored)
	id, _ = c.Lossless(make([]byte, 1<<20), Shape{RowBytes: 512})
	require.Equal(t, Zstd, id)
}

// A plane of mantissas from which codes gain some percent stays raw: decoding it would take as long
// as decoding the exponents, which gain most.
func TestMantissasStayRaw(t *testing.T) {
	rows, r := gaussian("bf16", 256, 256, 5), rand.New(rand.NewPCG(5, 5))
	for at := 1; at < len(rows); at += 2 { // a fifth of the signs: 7.72 bits of a sign and a mantissa
		if rows[at] &= 0x7f; r.IntN(5) == 0 {
			rows[at] |= 0x80
		}
	}
	id, stored := newCoder(t).Lossless(rows, Shape{RowBytes: 512})
	require.Equal(t, Split, id)
	_, bases, err := readSplit(stored, int64(len(rows)))
	require.NoError(t, err)
	planes := stored[splitHeaderBytes+bases:]
	form := func(plane int) uint32 { return binary.LittleEndian.Uint32(planes[4*plane:]) & 3 }
	require.EqualValues(t, formRaw, form(0))
	require.EqualValues(t, formHuffman, form(1))

	var low counts
	for at := 0; at < len(rows); at += 2 {
		low[byte(split{width: 2, rotate: 1}.number(rows[at:]))]++
	}
	require.Less(t, low.entropy(), 7.8, "codes would gain")
}

// The plain code and that of the processor do the same.
func TestPlainCodeAgrees(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(0, 200).Draw(rt, "numbers")
		rows := rapid.SliceOfN(rapid.Byte(), 2*n, 2*n).Draw(rt, "rows")
		var bases []byte
		if count := rapid.IntRange(0, 70).Draw(rt, "bases"); count > 0 {
			bases = rapid.SliceOfN(rapid.Byte(), count, count).Draw(rt, "values")
		}
		rotate := rapid.IntRange(0, 1).Draw(rt, "rotate")
		both := func() (planes [3][]byte, merged []byte) {
			planes = [3][]byte{make([]byte, n), make([]byte, n), make([]byte, apartBytes(n))}
			split2(rows, planes[0], planes[1], bases, rotate)
			takeApart(planes[1], planes[2])
			putTogether(planes[1], planes[2])
			merged = make([]byte, 2*n)
			merge2(merged, planes[0], planes[1], bases, rotate)
			return planes, merged
		}
		fast, merged := both()
		require.Equal(rt, rows, merged)
		defer plain()()
		slow, merged := both()
		require.Equal(rt, rows, merged)
		require.Equal(rt, slow, fast)
	})
}

// allSplits are the ways without bases.
var allSplits = []split{{width: 2}, {width: 2, apart: apartBits}, {width: 2, rotate: 1}, {width: 2, rotate: 1, apart: apartBits}, {width: 4}}

// Bases are chosen only where they make the sample smaller.
func TestBasesPay(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const channels, tokens = 512, 60
	var rows []byte
	for range tokens * channels { // 1.5 or a small number
		x := float32(1.5)
		if r.IntN(10) >= 6 {
			x = float32(1 + r.IntN(7))
		}
		sign := uint16(0)
		if r.IntN(5) == 0 {
			sign = 0x8000
		}
		rows = binary.LittleEndian.AppendUint16(rows, float16.Fromfloat32(x).Bits()|uint16(r.IntN(256))|sign)
	}
	way, ok := bestSplit(rows, Shape{RowBytes: 2 * channels}, 1)
	require.True(t, ok)
	plain := way
	plain.bases = nil
	require.LessOrEqual(t, len(way.encode(rows)), len(plain.encode(rows)))
}

func TestDamage(t *testing.T) {
	c := newCoder(t)
	rows := gaussian("f16", 256, 64, 9)
	for _, apart := range []int{0, apartBits} {
		way := split{width: 2, apart: apart}
		way.bases = way.basesOf(rows, 128)
		testDamage(t, Split, way.encode(rows), len(rows), nil)
	}
	require.ErrorIs(t, c.Decode(Raw, rows[:5], rows), ErrCorrupt)
	require.ErrorIs(t, c.Decode(77, rows, rows), ErrCorrupt)
	require.Equal(t, "encoding 77", ID(77).String())
}

// testDamage truncates, lengthens and changes a section of n decoded bytes: that is an error or other
// rows, checking agrees, and nothing outside is written. A second reader, which is slow, may be nil. try
// decodes bytes of such a section.
func testDamage(t *testing.T, id ID, stored []byte, n int, second func(hostile []byte, n int) []byte) (try func(hostile []byte, n int) error) {
	c := newCoder(t)
	try = func(hostile []byte, n int) error {
		got, err := decodeAndCheck(t, c, id, hostile, n)
		if err == nil && second != nil {
			require.True(t, bytes.Equal(second(hostile, n), got))
		}
		return err
	}
	for cut := range stored {
		_, err := decodeGuarded(t, c, id, stored[:cut], n)
		require.ErrorIs(t, err, ErrCorrupt, cut)
	}
	require.Error(t, try(stored[:len(stored)-1], n))
	require.Error(t, try(append(stored[:len(stored):len(stored)], 0), n))
	for _, wrong := range []int{0, 1, 2, 63, n - 2, n + 2, n - 128, n + 128, 2 * n} {
		require.Error(t, try(stored, wrong), wrong)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		hostile := bytes.Clone(stored)
		for range 1 + r.IntN(4) {
			hostile[r.IntN(1+r.IntN(len(hostile)))] = byte(r.Uint32())
		}
		_ = try(hostile, n)
	}
	return try
}

func FuzzDecode(f *testing.F) {
	rows := gaussian("f16", 32, 32, 1)
	for _, way := range allSplits {
		f.Add(uint8(Split), way.encode(rows), len(rows))
		way.bases = way.basesOf(rows, 64)
		f.Add(uint8(Split), way.encode(rows), len(rows))
	}
	c := newCoder(f)
	f.Add(uint8(Zstd), c.EncodeZstd(rows), len(rows))
	for _, way := range waysOf(rows, 64) {
		f.Add(uint8(way.id), new(quantizer).encode(rows, way), len(rows))
	}
	f.Fuzz(func(t *testing.T, id uint8, stored []byte, n int) {
		if n < 0 || n > 1<<20 {
			return
		}
		decode := decodeGuarded
		if id := ID(id); id == Split || id.Lossy() {
			decode = decodeAndCheck
		}
		got, err := decode(t, c, ID(id), stored, n)
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		again := decoded(t, c, ID(id), stored, n)
		require.Equal(t, got, again)
	})
}
