package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func known(best string, probs map[string]float64) distribution {
	return distribution{known: true, best: best, probs: probs, next: "a"}
}

func TestDivergence(t *testing.T) {
	a := known("a", map[string]float64{"a": 0.5, "b": 0.5})
	b := known("a", map[string]float64{"a": 0.75, "b": 0.25})
	require.Zero(t, divergence(&a, &a))
	require.InDelta(t, 0.5*math.Log(0.5/0.75)+0.5*math.Log(0.5/0.25), divergence(&a, &b), 1e-12)

	// Tokens that one of them does not list are one token.
	c := known("a", map[string]float64{"a": 0.5, "b": 0.3, "x": 0.1})
	d := known("a", map[string]float64{"a": 0.4, "b": 0.2, "y": 0.3})
	require.InDelta(t, 0.5*math.Log(0.5/0.4)+0.3*math.Log(0.3/0.2)+0.2*math.Log(0.2/0.4), divergence(&c, &d), 1e-12)
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
	require.InDelta(t, divergence(&want[0], &got[0])/2, q.KL, 1e-12)
	require.InDelta(t, math.Sqrt(1/0.25/0.5), q.Perplexity, 1e-12)
}

func TestProbabilityOfATokenThatIsNotListed(t *testing.T) {
	d := known("a", map[string]float64{"a": 0.5, "b": 0.25})
	require.Equal(t, 0.5, d.of("a"))
	require.Equal(t, 0.25, d.of("z"))
	d = known("a", map[string]float64{"a": 1.0000001})
	require.Equal(t, leastProbability, d.of("z"))
}

func TestAnswers(t *testing.T) {
	require.True(t, answers(" blue\n tree = x", "blue"))
	require.True(t, answers("deep blue sea", "deep blue"))
	require.False(t, answers(" bluer", "blue"))
	require.False(t, answers("", "blue"))
	require.False(t, answers("the blue", "blue"))
}
