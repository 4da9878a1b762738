package testmodel

import "math/rand/v2"

// A code is a vector of ±1 that stands for a token. Any two codes of a family have a cosine
// of at most 2^(-(bits-1)/2); negative cosines are not bounded, because the family has the
// opposite of each code. Elements of ±1 are exact in f16 and q8_0.
type code []int8

// Key codes, by which tokens are looked up, and value codes, which carry and name tokens. A key code must fit
// into the part of a head that does not rotate; the family has exactly one key code per token.
const (
	keyCodeBits   = 5
	valueCodeBits = 7
	keyCodeLen    = 1 << keyCodeBits   // 32, cosines up to 1/4
	valueCodeLen  = 1 << valueCodeBits // 128, cosines up to 1/8
)

// field is GF(2^bits) as polynomials over GF(2), modulo an irreducible one.
type field struct {
	bits    int
	modulus int
}

var (
	keyField   = field{keyCodeBits, 0b100101}     // x^5 + x^2 + 1
	valueField = field{valueCodeBits, 0b10000011} // x^7 + x + 1
)

func (f field) multiply(a, b int) int {
	product := 0
	for ; b != 0; b >>= 1 {
		if b&1 != 0 {
			product ^= a
		}
		a <<= 1
		if a>>f.bits != 0 {
			a ^= f.modulus
		}
	}
	return product
}

// trace maps half of the field to 0 and half to 1, linearly.
func (f field) trace(a int) int {
	sum := 0
	for range f.bits {
		sum ^= a
		a = f.multiply(a, a)
	}
	return sum
}

// code returns the n-th code: ±(-1)^Tr(ax + bx³) for each x of the field. The codes are R. Gold's sequences
// ("Maximal recursive sequences with 3-valued recursive cross-correlation functions", 1968): for an odd
// number of bits, the numbers of places where two of them agree and differ are equal up to 2^((bits-1)/2).
func (f field) code(n int) code {
	size := 1 << f.bits
	a, b, sign := n%size, n/size%size, n/size/size
	c := make(code, size)
	for x := range c {
		cube := f.multiply(x, f.multiply(x, x))
		c[x] = int8(1 - 2*(sign^f.trace(f.multiply(a, x)^f.multiply(b, cube))))
	}
	return c
}

// codebook gives each token its codes.
type codebook struct{ keys, values []code }

func newCodebook() codebook {
	random := rand.New(rand.NewPCG(0, 0))
	draw := func(f field) []code {
		drawn := make([]code, recallVocab)
		for token, n := range random.Perm(2 << (2 * f.bits))[:recallVocab] { // of all codes of the family
			drawn[token] = f.code(n)
		}
		return drawn
	}
	return codebook{keys: draw(keyField), values: draw(valueField)}
}
