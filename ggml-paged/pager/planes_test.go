package pager

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPlanesOf(t *testing.T) {
	const dim = 6
	images := make([]float32, dim*dim)
	set := func(row, column int, v float32) { images[column*dim+row] = v }
	set(0, 0, 0.5)
	set(0, 3, -0.25)
	set(3, 0, 0.75)
	set(3, 3, 0.125)
	for _, i := range []int{1, 2, 4, 5} {
		set(i, i, 1)
	}
	planes, err := PlanesOf(images, dim)
	require.NoError(t, err)
	require.Equal(t, []Plane{{A: 0, B: 3, M: [4]float32{0.5, -0.25, 0.75, 0.125}}}, planes)

	set(0, 4, 0.5)
	_, err = PlanesOf(images, dim)
	require.ErrorIs(t, err, ErrNotPlanes, "three elements mix")
	set(0, 4, 0)
	set(5, 5, 2)
	_, err = PlanesOf(images, dim)
	require.ErrorIs(t, err, ErrNotPlanes, "an element grows")
}
