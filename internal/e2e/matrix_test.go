package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// matrixSeedEnv is a seed that draws the same cells of a matrix again.
const matrixSeedEnv = "KVTIER_MATRIX_SEED"

// matrix draws the cells that a run plays of a matrix with axes of these sizes: as few as have each
// value of each axis. With KVTIER_LONG=1 a run plays all.
func matrix(t *testing.T, sizes ...int) (plays func(cell ...int) bool) {
	t.Helper()
	if os.Getenv(soakLongEnv) != "" {
		return func(...int) bool { return true }
	}
	seed := rand.Uint64N(1 << 40)
	if text := os.Getenv(matrixSeedEnv); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, matrixSeedEnv)
	}
	t.Logf("%s=%d", matrixSeedEnv, seed)
	cells := drawCells(seed, sizes)
	return func(cell ...int) bool { return cells[fmt.Sprint(cell)] }
}

// drawCells has a cell for each value of the longest axis. The values of every other axis are dealt out
// to them, each as often as the others.
func drawCells(seed uint64, sizes []int) map[string]bool {
	random := rand.New(rand.NewPCG(seed, 0))
	cells := make([][]int, slices.Max(sizes))
	for _, size := range sizes {
		order := random.Perm(size)
		values := make([]int, len(cells))
		for i := range values {
			values[i] = order[i%size]
		}
		random.Shuffle(len(values), func(i, j int) { values[i], values[j] = values[j], values[i] })
		for i, value := range values {
			cells[i] = append(cells[i], value)
		}
	}
	drawn := make(map[string]bool)
	for _, cell := range cells {
		drawn[fmt.Sprint(cell)] = true
	}
	return drawn
}

// TestMatrixHasEachValue: a run plays each value of each axis, and others with another seed.
func TestMatrixHasEachValue(t *testing.T) {
	sizes := []int{18, 2, 4}
	for seed := range uint64(100) {
		cells := drawCells(seed, sizes)
		require.Equal(t, cells, drawCells(seed, sizes))
		require.NotEqual(t, cells, drawCells(seed+1, sizes))
		require.LessOrEqual(t, len(cells), slices.Max(sizes))
		for axis, size := range sizes {
			values := make(map[string]bool)
			for cell := range cells {
				var at [3]string
				_, err := fmt.Sscanf(cell, "[%s %s %s", &at[0], &at[1], &at[2])
				require.NoError(t, err)
				values[at[axis]] = true
			}
			require.Len(t, values, size)
		}
	}
}
