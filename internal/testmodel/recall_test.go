package testmodel

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func writeRecall(t *testing.T, r Recall) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "recall.gguf")
	require.NoError(t, WriteRecall(path, r))
	return path
}

// TestLookBackLeak sums the weights that layer 0 gives to all positions except the previous
// one, at every possible distance.
func TestLookBackLeak(t *testing.T) {
	score := func(distance int) float64 {
		sum := 0.0
		for pair := range positionPairs {
			sum += math.Cos(math.Pow(4, -float64(pair)) * float64(distance-1))
		}
		return sum * lookBackPeak / positionPairs
	}
	leak, closest := 0.0, math.Inf(1)
	for distance := range recallContextMax {
		if distance != 1 {
			below := lookBackPeak - score(distance)
			closest = min(closest, below)
			leak += math.Exp(-below)
		}
	}
	require.InDelta(t, 15.77, closest, 0.01)
	require.Less(t, leak, 1e-6)
	// Except at distances up to two, q8_0 has room for its errors.
	for distance := 3; distance < recallContextMax; distance++ {
		require.Greater(t, lookBackPeak-score(distance), 30.0, "distance %d", distance)
	}
}

// TestRecallRotation: an engine that computes angles in float32, each pair from the previous
// one, gets exact angles at any position.
func TestRecallRotation(t *testing.T) {
	step := float32(math.Pow(recallRopeBase, -2.0/recallHeadDim))
	for _, position := range []int{1, 3, 99999, defaultContext - 1, recallContextMax - 1} {
		angle := float32(position)
		for pair := range rotaryPairs {
			require.Equal(t, math.Ldexp(float64(position), -2*pair), float64(angle))
			angle *= step
		}
	}
}
