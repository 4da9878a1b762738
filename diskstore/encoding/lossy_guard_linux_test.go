package encoding

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// border places arguments of a routine at one end of memory of their own.
type border struct {
	t     testing.TB
	r     *rand.Rand
	place func(g guarded, n int) []byte
	mem   []guarded
	used  int
}

// bytes returns n random bytes.
func (b *border) bytes(n int) []byte {
	if b.used == len(b.mem) {
		b.mem = append(b.mem, newGuarded(b.t, 4*memoryPage))
	}
	p := b.place(b.mem[b.used], n)
	b.used++
	for i := range p {
		p[i] = byte(b.r.Uint32())
	}
	return p
}

// floats returns n numbers of f32.
func (b *border) floats(n int) []float32 {
	p := b.bytes(4 * n)
	if n == 0 {
		return nil
	}
	x := unsafe.Slice((*float32)(unsafe.Pointer(&p[0])), n)
	for i := range x {
		x[i] = float32(100 * b.r.NormFloat64())
	}
	return x
}

// TestLossyRoutinesStayInside runs each routine with every argument at either end of memory, and rows
// at odd addresses.
func TestLossyRoutinesStayInside(t *testing.T) {
	routines := map[string]func(b *border, n int){ // n is a multiple of rotation
		"dequantize8": func(b *border, n int) { dequantize8(b.bytes(2*n), b.bytes(n/2), b.bytes(n/2), b.floats(n/unit)) },
		"dequantize4": func(b *border, n int) { dequantize4(b.bytes(2*n), b.bytes(n/2), b.floats(n/unit)) },
		"dequantizeChannels": func(b *border, n int) {
			dequantizeChannels(b.bytes(2*n), b.bytes(n/2), b.floats(n), b.floats(n))
		},
		"dequantizeRotated": func(b *border, n int) {
			dequantizeRotated(b.bytes(2*n), b.bytes(n/2), b.floats(n/rotation), b.floats(n))
		},
		"widen":     func(b *border, n int) { widen(b.floats(n), b.bytes(2*n)) },
		"widen odd": func(b *border, n int) { widen(b.floats(n+n/rotation), b.bytes(2*(n+n/rotation))) },
		"rotateAll": func(b *border, n int) { rotateAll(b.floats(n)) },
		"largest":   func(b *border, n int) { largest(b.floats(n)) },
		"larger":    func(b *border, n int) { larger(b.floats(n), b.floats(n)) },
		"larger odd": func(b *border, n int) {
			larger(b.floats(n+n/rotation), b.floats(n+n/rotation))
		},
		"quantizeQ8":   func(b *border, n int) { quantizeQ8(b.floats(n), b.bytes(n)) },
		"quantizeQ4":   func(b *border, n int) { quantizeQ4(b.floats(n), b.bytes(n)) },
		"quantizeInt4": func(b *border, n int) { quantizeInt4(b.floats(n), b.bytes(n)) },
		"fit4": func(b *border, n int) {
			fit4(b.bytes(n), b.floats(n), b.floats(n), b.floats(n), b.floats(n))
		},
	}
	for name, routine := range routines {
		b := &border{t: t, r: rand.New(rand.NewPCG(1, 1))}
		for _, odd := range []int{0, 1, 2, 31} {
			for _, place := range []func(g guarded, n int) []byte{
				func(g guarded, n int) []byte { return g.first(n) },
				func(g guarded, n int) []byte { return g.last(n) },
				func(g guarded, n int) []byte { // odd bytes away from the first one, or from the last one
					if n%4 == 0 && n >= 4*rotation {
						return g.last(n)
					}
					return g.last(n + odd)[:n]
				},
			} {
				b.place = place
				for n := 0; n <= 5*rotation; n += rotation {
					b.used = 0
					require.NotPanics(t, func() { routine(b, n) }, "%s of %d", name, n)
				}
			}
		}
	}
}

// TestLossyStaysInside encodes rows that end where memory ends, and decodes sections that end there,
// damaged ones among them, into rows that end there.
func TestLossyStaysInside(t *testing.T) {
	c := newCoder(t)
	from, to := newGuarded(t, 1<<20), newGuarded(t, 1<<20)
	rapid.Check(t, func(rt *rapid.T) {
		channels := unit * rapid.IntRange(1, 20).Draw(rt, "units")
		tokens := rapid.IntRange(1, 300).Draw(rt, "tokens")
		odd := rapid.IntRange(0, 3).Draw(rt, "odd")
		rows := keys(tokens, channels)
		for _, place := range []func(g guarded, n int) []byte{
			guarded.first, guarded.last,
			func(g guarded, n int) []byte { return g.first(n + odd)[odd:] },
			func(g guarded, n int) []byte { return g.last(n + odd)[:n] },
		} {
			in := place(from, len(rows))
			copy(in, rows)
			for _, id := range lossyIDs {
				if _, err := c.Lossy(id, in, Shape{RowBytes: 2 * channels}); err != nil {
					require.ErrorContains(rt, err, "lossless")
				}
			}
			for _, way := range waysOf(rows, 2*channels) {
				stored := new(quantizer).encode(rows, way)
				in, out := place(from, len(stored)), place(to, len(rows))
				copy(in, stored)
				require.NoError(rt, c.Decode(way.id, in, out))
				want := append([]byte(nil), out...)
				for range 4 {
					copy(in, stored)
					at := rapid.IntRange(0, len(in)-1).Draw(rt, "at")
					if rapid.Bool().Draw(rt, "in front") {
						at %= 64
					}
					in[at] = rapid.Byte().Draw(rt, "byte")
					if err := c.Decode(way.id, in, out); err != nil {
						require.ErrorIs(rt, err, ErrCorrupt)
					}
				}
				copy(in, stored)
				require.NoError(rt, c.Decode(way.id, in, out))
				require.Equal(rt, string(want), string(out), "after damage in the same memory")
			}
		}
	})
}
