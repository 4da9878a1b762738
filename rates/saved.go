package rates

import (
	"math"
	"time"
)

// wholeMax is the number of prompts that are kept, the quickest of each power of two of tokens.
const wholeMax = 32

// Whole notes that a prompt was computed from its first token to its last in a time.
func (r *Rates) Whole(tokens int, took time.Duration) {
	s := sample{float64(tokens), took.Seconds()}
	if tokens <= 0 || !s.valid() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addWholeLocked(s)
	r.file.changedLocked(r)
}

// addWholeLocked keeps the quickest prompt, for each token, of each power of two.
func (r *Rates) addWholeLocked(s sample) {
	if !s.valid() || s.x < 1 {
		return
	}
	for i, old := range r.whole {
		if octave(old.x) == octave(s.x) {
			if s.y*old.x < old.y*s.x {
				r.whole[i] = s
			}
			return
		}
	}
	if len(r.whole) < wholeMax {
		r.whole = append(r.whole, s)
	}
}

// Saved estimates the time that was saved by a prompt of which the first tokens, up to held, were in
// the slot, others were restored, and all others computed in the time that it took: less than
// computing all but held, as predicted and never more than measured for as many tokens, by took. It
// is 0 while nothing was measured.
func (r *Rates) Saved(held, tokens int, took time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.compute.known() || took <= 0 || held >= tokens {
		return 0
	}
	cold := r.computingLocked(held, tokens)
	if most, all := r.mostLocked(float64(tokens)), r.computingLocked(0, tokens); most < all {
		cold *= most / all
	}
	return max(0, seconds(cold)-took)
}

// mostLocked bounds the time to compute a prompt, in seconds, by those that were measured. The cost
// of a token grows with its position, at most in proportion: a part of a prompt takes at most its
// share of the whole, and a longer one at most the square of its length.
func (r *Rates) mostLocked(tokens float64) float64 {
	most := math.Inf(1)
	for _, s := range r.whole {
		share := tokens / s.x
		if share > 1 {
			share *= share
		}
		most = min(most, s.y*share)
	}
	return most
}
