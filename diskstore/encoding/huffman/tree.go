package huffman

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/klauspost/compress/fse"
)

// ErrCorrupt reports bytes that are not a plane of the wanted size.
var ErrCorrupt = errors.New("huffman: plane is corrupt")

func corrupt(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, ErrCorrupt)...)
}

const (
	lookupBits = 11 // the longest code that RFC 8878 allows, and the bits of a look-up
	symbolsMax = 256

	weightsLog  = 6 // the largest table, in bits, of weights in codes of FSE
	fseLogLeast = 5 // is stored as 0
)

// tree is the codes of a plane: symbols in the order of their codes, the longest codes first. Codes
// of one length are in the order of their symbols.
type tree struct {
	symbols [symbolsMax]byte
	lengths [symbolsMax]uint8 // of the code of symbols[i], in bits
	n       int
	fits    [lookupBits + 1]fit // by the number of bits

	weights [symbolsMax]byte
	fse     fse.Scratch
}

// read reads a tree description and returns the bytes behind it.
func (t *tree) read(stored []byte) (rest []byte, err error) {
	if len(stored) < 2 {
		return nil, corrupt("%d bytes are no tree", len(stored))
	}
	size, rest := int(stored[0]), stored[1:]
	n, plain := size-127, size >= 128 // weights of 4 bits each
	if plain {
		size = (n + 1) / 2
	}
	if size > len(rest) {
		return nil, corrupt("a tree of %d bytes, of which %d are there", size, len(rest))
	}
	if plain {
		for i, b := range rest[:size] {
			t.weights[2*i], t.weights[2*i+1] = b>>4, b&15
		}
	} else if n, err = t.readPacked(rest[:size]); err != nil {
		return nil, err
	}
	return rest[size:], t.order(n)
}

// readPacked reads weights in codes of FSE and returns their number.
func (t *tree) readPacked(stored []byte) (n int, err error) {
	if len(stored) > 0 && stored[0]&15 > weightsLog-fseLogLeast {
		return 0, corrupt("weights in tables of %d bits", stored[0]&15+fseLogLeast)
	}
	t.fse.DecompressLimit = symbolsMax - 1
	t.fse.Out = t.weights[:0]
	weights, err := fse.Decompress(stored, &t.fse)
	t.fse.Out = nil
	if err != nil || len(weights) >= symbolsMax {
		return 0, corrupt("a tree of %d bytes with %d weights: %v", len(stored), len(weights), err)
	}
	return copy(t.weights[:], weights), nil
}

// order adds the last weight, which the others imply, to n weights, and orders the symbols.
func (t *tree) order(n int) error {
	var sum uint32
	var counts [lookupBits + 2]int // by weight
	for _, w := range t.weights[:n] {
		if w > lookupBits {
			return corrupt("a weight of %d", w)
		}
		sum += 1 << w >> 1
		counts[w]++
	}
	depth := bits.Len32(sum) // of the longest code
	left := uint32(1)<<depth - sum
	if sum == 0 || depth > lookupBits || left&(left-1) != 0 {
		return corrupt("weights with a sum of %d", sum)
	}
	t.weights[n] = byte(bits.Len32(left))
	counts[t.weights[n]]++
	if counts[1] == 0 { // the two longest codes are missing
		return corrupt("no weight of 1")
	}
	var next [lookupBits + 2]int // index of the next symbol of a weight
	for w := 1; w <= depth; w++ {
		next[w+1] = next[w] + counts[w]
	}
	t.n = next[depth+1]
	for symbol, w := range t.weights[:n+1] {
		if w > 0 {
			i := next[w]
			t.symbols[i], t.lengths[i] = byte(symbol), uint8(depth+1)-w
			next[w]++
		}
	}
	return nil
}
