package pager

import (
	"errors"
	"math"
)

// ErrNotPlanes is the error of [PlanesOf] for a matrix that is more than rotations of pairs.
var ErrNotPlanes = errors.New("shifting K is more than a rotation of pairs")

// PlanesOf reads a matrix that is given as the images of the unit vectors, one after the
// other. Each row and column has at most one element beside the diagonal, as in a rotary
// embedding; elements that stay as they are belong to no plane.
func PlanesOf(images []float32, dim int) ([]Plane, error) {
	at := func(row, column int) float32 { return images[column*dim+row] }
	var planes []Plane
	done := make([]bool, dim)
	for a := range dim {
		if done[a] {
			continue
		}
		b := a
		for i := range dim {
			if i == a || at(i, a) == 0 && at(a, i) == 0 {
				continue
			}
			if b != a || done[i] {
				return nil, ErrNotPlanes
			}
			b = i
		}
		done[a], done[b] = true, true
		switch {
		case b != a:
			planes = append(planes, Plane{A: a, B: b, M: [4]float32{at(a, a), at(a, b), at(b, a), at(b, b)}})
		case math.Abs(float64(at(a, a)-1)) > 1e-6:
			return nil, ErrNotPlanes
		}
	}
	return planes, nil
}
