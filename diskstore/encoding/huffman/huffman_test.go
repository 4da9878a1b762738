package huffman

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/huff0"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// packed returns a plane in Huffman codes, nil where the library makes none.
func packed(plane []byte) []byte {
	var s huff0.Scratch
	s.TableLog = lookupBits
	out, _, err := huff0.Compress4X(plane, &s)
	if err != nil {
		return nil
	}
	return out
}

// exponents is a plane as rows of f16 have: the bytes of a normal distribution.
func exponents(r *rand.Rand, n int, mask byte) []byte {
	plane := make([]byte, n)
	for i := range plane {
		x := r.NormFloat64()
		_, e := math.Frexp(x)
		plane[i] = byte((15+e)<<2) | byte(r.IntN(4))
		if x < 0 {
			plane[i] |= 0x80
		}
		plane[i] &= mask
	}
	return plane
}

func TestDecodeGivesPlaneBack(t *testing.T) {
	var d Decoder
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		n := rapid.OneOf(rapid.IntRange(1, 200), rapid.IntRange(1, 1<<16)).Draw(rt, "n")
		var plane []byte
		if rapid.Bool().Draw(rt, "exponents") {
			plane = exponents(r, n, rapid.SampledFrom([]byte{0xff, 0xfc, 0x7c}).Draw(rt, "mask"))
		} else {
			plane = make([]byte, n)
			spread := rapid.Float64Range(0.2, 60).Draw(rt, "spread")
			for i := range plane {
				plane[i] = byte(r.NormFloat64() * spread)
				if i > n/2 && spread > 20 { // streams of different kinds
					plane[i] &= 3
				}
			}
		}
		stored := packed(plane)
		if stored == nil {
			return
		}
		got := make([]byte, n)
		require.NoError(rt, d.Decode(stored, got))
		require.Equal(rt, plane, got)
	})
}

// planes are those of some kinds and sizes, in Huffman codes.
func planes() (all [][]byte, sizes []int) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int{60, 257, 4096, 1 << 16} {
		for _, mask := range []byte{0xff, 0xfc, 0x7c} {
			if stored := packed(exponents(r, n, mask)); stored != nil {
				all, sizes = append(all, stored), append(sizes, n)
			}
		}
	}
	return all, sizes
}

// decodeInside decodes into a part of a larger plane, and fails when bytes around the part change.
func decodeInside(t testing.TB, d *Decoder, stored []byte, n int) ([]byte, error) {
	const around = 64
	all := bytes.Repeat([]byte{0xa5}, n+2*around)
	plane := all[around : around+n : around+n]
	err := d.Decode(stored[:len(stored):len(stored)], plane)
	untouched := bytes.Repeat([]byte{0xa5}, around)
	require.Equal(t, untouched, all[:around])
	require.Equal(t, untouched, all[around+n:])
	if err != nil {
		require.ErrorIs(t, err, ErrCorrupt)
	}
	return plane, err
}

// requireAsLibrary decodes with the library, too: no plane may differ.
func requireAsLibrary(t testing.TB, d *Decoder, stored []byte, n int) error {
	got, err := decodeInside(t, d, stored, n)
	if err != nil {
		return err
	}
	var s huff0.Scratch
	table, rest, err := huff0.ReadTable(stored, &s)
	require.NoError(t, err, "the library reads no tree")
	want, err := table.Decoder().Decompress4X(make([]byte, 0, n), rest)
	require.NoError(t, err, "the library reads no streams")
	require.Equal(t, want, got)
	return nil
}

// A changed plane may by chance be another one: neither codes nor streams have a checksum.
func TestDamage(t *testing.T) {
	var d Decoder
	r := rand.New(rand.NewPCG(1, 2))
	all, sizes := planes()
	require.Greater(t, len(all), 8)
	for i, stored := range all {
		n := sizes[i]
		for _, wrong := range []int{0, 1, n / 2, 2 * n} {
			require.Error(t, requireAsLibrary(t, &d, stored, wrong), wrong)
		}
		cuts, found := 0, 0
		for cut := 0; cut < len(stored); cut += max(1, len(stored)/300) {
			cuts++
			if requireAsLibrary(t, &d, stored[:cut], n) != nil {
				found++
			}
		}
		require.Greater(t, found, cuts*9/10)
		for range 1000 {
			hostile := bytes.Clone(stored)
			for range 1 + r.IntN(4) {
				hostile[r.IntN(1+r.IntN(len(hostile)))] = byte(r.Uint32())
			}
			_ = requireAsLibrary(t, &d, hostile, n)
		}
	}
}

// Trees that the library refuses, and that would need much memory, are refused.
func TestTreesAreRefused(t *testing.T) {
	var d Decoder
	for name, tree := range map[string][]byte{
		"no weight of 1":     {128, 0x20, 1, 0, 1, 0, 1, 0, 0x1b, 0x12, 0x1f, 0x10},
		"tables of 15 bits":  {11, 0x1a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 1, 1, 1},
		"a weight of 12":     {128, 0xc0, 1, 0, 1, 0, 1, 0, 0x1b, 0x12, 0x1f, 0x10},
		"weights of nothing": {128, 0x00, 1, 0, 1, 0, 1, 0, 0x1b, 0x12, 0x1f, 0x10},
	} {
		_, err := decodeInside(t, &d, tree, 16)
		require.Error(t, err, name)
	}
}

func FuzzDecode(f *testing.F) {
	all, sizes := planes()
	for i, stored := range all {
		f.Add(stored, sizes[i])
	}
	f.Fuzz(func(t *testing.T, stored []byte, n int) {
		if n >= 1 && n <= 1<<17 {
			_ = requireAsLibrary(t, new(Decoder), stored, n)
		}
	})
}
