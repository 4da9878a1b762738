package testmodel

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCodes: any two tokens differ in both codes.
func TestCodes(t *testing.T) {
	book := newCodebook()
	for _, test := range []struct {
		codes          []code
		length, dotMax int
	}{
		{book.keys, keyCodeLen, keyCodeLen / 4},
		{book.values, valueCodeLen, valueCodeLen / 8},
	} {
		require.Len(t, test.codes, recallVocab)
		sums := make([]int, test.length)
		for i, a := range test.codes {
			require.Len(t, a, test.length)
			for j, b := range test.codes[:i] {
				dot := 0
				for x := range a {
					dot += int(a[x]) * int(b[x])
				}
				if dot > test.dotMax {
					require.LessOrEqual(t, dot, test.dotMax, "tokens %d and %d", i, j)
				}
			}
			for x, sign := range a {
				require.EqualValues(t, 1, sign*sign)
				sums[x] += int(sign)
			}
		}
		// An f16 sum of values stays small only if +1 and -1 are equally frequent.
		for _, sum := range sums {
			require.InDelta(t, 0, sum, recallVocab/10)
		}
	}
}
