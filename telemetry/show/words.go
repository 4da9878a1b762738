package show

import (
	"slices"

	"github.com/kvtier/kvtier/telemetry"
)

// Parting is the place at which two prompts part: the tokens before, which both have, the
// tokens that differ, and the tokens of each behind these. Where the prompts do not meet again,
// all that follows differs.
type Parting struct {
	Before            []int32
	Was, Is           []int32
	AfterWas, AfterIs []int32
}

// meetTokens is the number of tokens in a row that have to be the same for two prompts to have
// met again: single tokens, such as a colon, are alike by chance.
const meetTokens = 3

// Part finds the place in words. A change is kept as short as possible.
func Part(w telemetry.Words) Parting {
	n := 0
	for n < min(len(w.Was), len(w.Is)) && w.Was[n] == w.Is[n] {
		n++
	}
	was, is := w.Was[n:], w.Is[n:]
	p := Parting{Before: w.Is[:n], Was: was, Is: is}
	for sum := range len(was) + len(is) {
		for i := max(0, sum-len(is)); i <= min(sum, len(was)); i++ {
			if j := sum - i; meet(was[i:], is[j:]) {
				p.Was, p.AfterWas, p.Is, p.AfterIs = was[:i], was[i:], is[:j], is[j:]
				return p
			}
		}
	}
	return p
}

func meet(was, is []int32) bool {
	return min(len(was), len(is)) >= meetTokens && slices.Equal(was[:meetTokens], is[:meetTokens])
}

// PartAt is the place of a change that is known to be at the positions [begin, end) of the
// later prompt.
func PartAt(w telemetry.Words, begin, end int) Parting {
	from := min(max(begin-w.Begin, 0), len(w.Is))
	to := min(max(end-w.Begin, from), len(w.Is))
	p := Part(w)
	p.Before, p.Is, p.AfterIs = w.Is[:from], w.Is[from:to], w.Is[to:]
	return p
}
