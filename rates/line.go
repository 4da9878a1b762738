package rates

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// sample is one observation: the cost y of a unit, in seconds, at x.
type sample struct{ x, y float64 }

// Limits of samples: far beyond real machines, and small enough to keep sums finite.
const (
	sampleMax = 1e12 // bytes of a page, or a position
	costMax   = 1e6  // seconds of a token or of a page
)

func (s sample) valid() bool {
	return s.x >= 0 && s.x <= sampleMax && s.y > 0 && s.y <= costMax
}

const (
	// samplesPerOctave is the number of observations kept between one power of two of x and
	// the next, so that many short prompts do not push out the observations of a long one.
	samplesPerOctave = 6
	// spreadMin is the least ratio of two x for a slope between them: between near points it is noise.
	spreadMin = 2
)

// line is a robust fit y = at0 + slope·x through recent observations; neither is negative.
type line struct {
	// halfLife is the number of newer observations after which one counts half.
	halfLife float64
	// proportional: while all x are about the same, y grows with x; otherwise y is constant.
	proportional bool

	samples []sample // oldest first
	fitted  bool     // at0 and slope were computed from samples
	at0     float64
	slope   float64
}

// add adds an observation, and drops the oldest of its octave beyond samplesPerOctave.
func (l *line) add(s sample) {
	if !s.valid() {
		return
	}
	var same []int // indices in the octave, the oldest first
	for i, old := range l.samples {
		if octave(old.x) == octave(s.x) {
			same = append(same, i)
		}
	}
	if len(same) >= samplesPerOctave {
		l.samples = slices.Delete(l.samples, same[0], same[0]+1)
	}
	l.samples = append(l.samples, s)
	l.fitted = false
}

// clone returns a copy that shares no samples.
func (l line) clone() line {
	l.samples = slices.Clone(l.samples)
	return l
}

func octave(x float64) int { return bits.Len64(uint64(x)) }

func (l *line) known() bool { return len(l.samples) > 0 }

// at is y at x, for a known line only.
func (l *line) at(x float64) float64 {
	if !l.fitted {
		l.fit()
	}
	return l.at0 + l.slope*x
}

// fit is the weighted Theil-Sen estimator: slope is the median of the slopes between pairs,
// at0 the median of the remainders. Up to a quarter of the observations may be arbitrary.
func (l *line) fit() {
	l.fitted = true
	var slopes []weighted
	for i, s := range l.samples {
		for j, t := range l.samples[:i] {
			if s.x != t.x && max(s.x, t.x) >= spreadMin*min(s.x, t.x) {
				slopes = append(slopes, weighted{(s.y - t.y) / (s.x - t.x), l.weight(i) * l.weight(j)})
			}
		}
	}
	l.slope = max(0, median(slopes))
	l.at0 = l.medianOf(func(s sample) float64 { return s.y - l.slope*s.x })
	alike := len(slopes) == 0 && l.proportional && l.samples[0].x > 0
	if alike || l.at0 < 0 {
		l.at0, l.slope = 0, l.medianOf(func(s sample) float64 { return s.y / max(1, s.x) })
	}
}

func (l *line) weight(i int) float64 {
	return math.Exp2(-float64(len(l.samples)-1-i) / l.halfLife)
}

func (l *line) medianOf(value func(sample) float64) float64 {
	values := make([]weighted, len(l.samples))
	for i, s := range l.samples {
		values[i] = weighted{value(s), l.weight(i)}
	}
	return median(values)
}

type weighted struct{ value, weight float64 }

// median is the smallest value such that values up to it have half of the weight.
func median(values []weighted) float64 {
	slices.SortFunc(values, func(a, b weighted) int { return cmp.Compare(a.value, b.value) })
	var total, below float64
	for _, v := range values {
		total += v.weight
	}
	for _, v := range values {
		if below += v.weight; below >= total/2 {
			return v.value
		}
	}
	return 0
}
