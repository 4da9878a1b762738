package runs

import "iter"

// base of the polynomial that hashes a page's tokens. base is odd, so that no power of base
// is 0 modulo 2^64.
const base = 0x9e3779b97f4a7c15

// hash is the hash of one page's tokens.
func (x *Index) hash(tokens []int32) uint64 {
	var h uint64
	for _, token := range tokens {
		h = h*base + digit(token)
	}
	return h
}

// digit is a token's coefficient in the polynomial, never 0.
func digit(token int32) uint64 { return uint64(uint32(token)) + 1 }

// windows yields the start and the hash of every window of a page's length in tokens, in order.
func (x *Index) windows(tokens []int32) iter.Seq2[int, uint64] {
	return func(yield func(int, uint64) bool) {
		if len(tokens) < x.size {
			return
		}
		h := x.hash(tokens[:x.size])
		for at := 0; at < x.size; at++ {
			if !yield(at, h) || at+x.size >= len(tokens) {
				return
			}
			h = (h-digit(tokens[at])*x.lead)*base + digit(tokens[at+x.size])
		}
	}
}
