package encoding

import (
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// guarded is memory with pages before and behind it that end the program when they are touched.
type guarded struct{ mem []byte }

const memoryPage = 4096

// newGuarded maps n bytes, rounded up to whole pages of memory.
func newGuarded(t testing.TB, n int) guarded {
	n = (n + memoryPage - 1) / memoryPage * memoryPage
	all, err := syscall.Mmap(-1, 0, n+2*memoryPage, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(all)) })
	require.NoError(t, syscall.Mprotect(all[:memoryPage], syscall.PROT_NONE))
	require.NoError(t, syscall.Mprotect(all[memoryPage+n:], syscall.PROT_NONE))
	return guarded{all[memoryPage : memoryPage+n]}
}

// first returns the first n bytes, last the last n.
func (g guarded) first(n int) []byte { return g.mem[:n:n] }
func (g guarded) last(n int) []byte  { return g.mem[len(g.mem)-n:] }

// TestPlanesStayInside takes numbers apart and puts them together at either end of memory, for each
// small size and at odd addresses.
func TestPlanesStayInside(t *testing.T) {
	const most = 600
	rows, lo, hi, bases, again := newGuarded(t, 2*most), newGuarded(t, most), newGuarded(t, most), newGuarded(t, most), newGuarded(t, 2*most)
	apart := newGuarded(t, apartBytes(most))
	r := rand.New(rand.NewPCG(1, 1))
	test := func(n, row, rotate int, place func(g guarded, n int) []byte) {
		in, b := place(rows, 2*n), place(bases, row)
		for _, p := range [][]byte{in, b} {
			for i := range p {
				p[i] = byte(r.Uint32())
			}
		}
		planes, out := [][]byte{place(lo, n), place(hi, n)}, place(again, 2*n)
		split2(in, planes[0], planes[1], b, rotate)
		bits, high := place(apart, apartBytes(n)), append([]byte{}, planes[1]...)
		takeApart(planes[1], bits)
		require.False(t, slices.ContainsFunc(planes[1], func(b byte) bool { return b&3 != 0 }))
		putTogether(planes[1], bits)
		require.Equal(t, high, planes[1])
		merge2(out, planes[0], planes[1], b, rotate)
		require.Equal(t, in, out, "%d numbers in rows of %d", n, row)
	}
	for n := range most / 2 {
		for _, place := range []func(g guarded, n int) []byte{guarded.first, guarded.last} {
			for _, row := range []int{0, n, 31, 32, 33, 1} {
				test(n, row, n%2, place)
			}
			for _, odd := range []int{1, 7, 31} {
				test(n, 0, n%2, func(g guarded, n int) []byte { return place(g, n+odd)[odd:] })
				test(n, 0, n%2, func(g guarded, n int) []byte { return place(g, n+odd)[:n] })
			}
		}
	}
	for _, n := range []int{511, 512, 513, 544, 575, 576, 577} {
		test(n, n, 1, guarded.last)
		test(n, 64, 1, guarded.last)
	}
}

// TestDecodeStaysInside decodes sections that end where memory ends, into rows that end there.
func TestDecodeStaysInside(t *testing.T) {
	c := newCoder(t)
	from, to := newGuarded(t, 1<<20), newGuarded(t, 1<<20)
	rapid.Check(t, func(rt *rapid.T) {
		width := rapid.SampledFrom([]int{2, 4}).Draw(rt, "width")
		channels := rapid.IntRange(1, 400).Draw(rt, "channels")
		rows := hostileRows(rt, width*channels*rapid.IntRange(1, 300).Draw(rt, "tokens"), width)
		way := split{width: width, rotate: rapid.IntRange(0, 4/width-1).Draw(rt, "rotate"), apart: apartBits * rapid.IntRange(0, 4/width-1).Draw(rt, "apart")}
		if rapid.Bool().Draw(rt, "based") {
			way.bases = way.basesOf(rows, width*channels)
		}
		for id, stored := range map[ID][]byte{Split: way.encode(rows), Zstd: c.EncodeZstd(rows)} {
			for _, place := range []func(g guarded, n int) []byte{guarded.first, guarded.last} {
				in, out := place(from, len(stored)), place(to, len(rows))
				copy(in, stored)
				require.NoError(rt, c.Decode(id, in, out))
				require.Equal(rt, string(rows), string(out))
				for range 8 { // damage: an error or other rows
					copy(in, stored)
					in[rapid.IntRange(0, len(in)-1).Draw(rt, "at")] = rapid.Byte().Draw(rt, "byte")
					if err := c.Decode(id, in, out); err != nil {
						require.ErrorIs(rt, err, ErrCorrupt)
					}
				}
			}
		}
	})
}

// hostileRows are numbers of a kind that coders do not expect: constant, alternating, of one value
// in front of all others, not finite, subnormal, or of as many values as there are.
func hostileRows(t *rapid.T, n, width int) []byte {
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	patterns := map[string]func(i int) byte{
		"zero":        func(int) byte { return 0 },
		"constant":    func(int) byte { return 0xff },
		"alternating": func(i int) byte { return byte(i / width % 2 * 0x80) },
		"counting":    func(i int) byte { return byte(i / width) },
		"rare": func(int) byte { // the longest codes
			return byte(min(255, 3*r.ExpFloat64()))
		},
		"geometric": func(int) byte { return byte(max(0, 63-r.Uint64()&63*uint64(r.IntN(2)))) },
		"one other": func(i int) byte { return map[bool]byte{true: 1}[i == n/2] },
		"not finite": func(i int) byte {
			if i%width == width-1 {
				return byte(0x7f + r.IntN(2)*0x80)
			}
			return byte(r.Uint32())
		},
		"subnormal": func(i int) byte {
			if i%width == width-1 {
				return byte(r.IntN(2) * 0x80)
			}
			return byte(r.Uint32())
		},
		"random":       func(int) byte { return byte(r.Uint32()) },
		"nearly coded": func(int) byte { return byte(r.IntN(250)) }, // at the limit of the least gain
		"late": func(i int) byte { // another content than any sample shows
			if i < n-n/16 {
				return byte(r.IntN(4))
			}
			return byte(r.Uint32())
		},
	}
	names := []string{"zero", "constant", "alternating", "counting", "rare", "geometric", "one other", "not finite", "subnormal", "random", "nearly coded", "late"}
	of := patterns[rapid.SampledFrom(names).Draw(t, "pattern")]
	rows := make([]byte, n)
	for i := range rows {
		rows[i] = of(i)
	}
	return rows
}

// TestHostileRowsAreExact: the rows come back from each encoding that is chosen, and no section is
// larger than they are.
func TestHostileRowsAreExact(t *testing.T) {
	c := newCoder(t)
	rapid.Check(t, func(rt *rapid.T) {
		width := rapid.SampledFrom([]int{1, 2, 4}).Draw(rt, "width")
		row := width * rapid.IntRange(1, 3000).Draw(rt, "channels")
		rows := hostileRows(rt, row*rapid.IntRange(1, 400).Draw(rt, "tokens")%(1<<20)/row*row+row, width)
		id, stored := c.Lossless(rows, Shape{RowBytes: row})
		if id == Raw {
			return
		}
		require.Less(rt, len(stored), len(rows))
		requireExact(rt, c, id, stored, rows, "%v", id)
	})
}
