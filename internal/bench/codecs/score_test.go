package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/bench/lab"
)

func known(best string, probs map[string]float64) distribution {
	return distribution{known: true, best: best, probs: probs, next: "a"}
}

func TestCompare(t *testing.T) {
	want := []distribution{
		known("a", map[string]float64{"a": 0.5, "b": 0.5}),
		known("b", map[string]float64{"a": 0.5, "b": 0.5}),
		{}, // the engine would end the text here
		known("a", map[string]float64{"a": 0.5, "b": 0.5}),
	}
	got := []distribution{
		known("a", map[string]float64{"a": 0.25, "b": 0.75}),
		known("a", map[string]float64{"a": 0.5, "b": 0.5}),
		known("a", map[string]float64{"a": 1}),
		{},
	}
	q := compare(want, got)
	require.Equal(t, 2, q.Compared)
	require.Equal(t, 0.5, q.Top1)
	require.InDelta(t, lab.Divergence(want[0].probs, got[0].probs)/2, q.KL, 1e-12)
	require.InDelta(t, math.Sqrt(1/0.25/0.5), q.Perplexity, 1e-12)
}

func TestProbabilityOfATokenThatIsNotListed(t *testing.T) {
	d := known("a", map[string]float64{"a": 0.5, "b": 0.25})
	require.Equal(t, 0.5, d.of("a"))
	require.Equal(t, 0.25, d.of("z"))
	d = known("a", map[string]float64{"a": 1.0000001})
	require.Equal(t, lab.LeastProbability, d.of("z"))
}

func TestAnswers(t *testing.T) {
	require.True(t, answers(" blue\n tree = x", "blue"))
	require.True(t, answers("deep blue sea", "deep blue"))
	require.False(t, answers(" bluer", "blue"))
	require.False(t, answers("", "blue"))
	require.False(t, answers("the blue", "blue"))
}
