package lab

import (
	"math"
	"testing"

	"github.com/ollama/ollama/api"
	"github.com/stretchr/testify/require"
)

func TestDivergence(t *testing.T) {
	a := map[string]float64{"a": 0.5, "b": 0.5}
	b := map[string]float64{"a": 0.75, "b": 0.25}
	require.Zero(t, Divergence(a, a))
	require.InDelta(t, 0.5*math.Log(0.5/0.75)+0.5*math.Log(0.5/0.25), Divergence(a, b), 1e-12)

	// Tokens that one of them does not list are one token.
	c := map[string]float64{"a": 0.5, "b": 0.3, "x": 0.1}
	d := map[string]float64{"a": 0.4, "b": 0.2, "y": 0.3}
	require.InDelta(t, 0.5*math.Log(0.5/0.4)+0.3*math.Log(0.3/0.2)+0.2*math.Log(0.2/0.4), Divergence(c, d), 1e-12)
	require.InDelta(t, 0.5*math.Log(0.5/0.4)+0.25*math.Log(0.25/0.5)+0.25*math.Log(0.25/0.1),
		Divergence(map[string]float64{"a": 0.5, "b": 0.25, "c": 0.25}, map[string]float64{"a": 0.4, "b": 0.5}), 1e-12)
}

func TestProbabilities(t *testing.T) {
	at := api.Logprob{TopLogprobs: []api.TokenLogprob{{Token: "a", Logprob: math.Log(0.5)}, {Token: "b", Logprob: math.Log(0.25)}, {Token: "a", Logprob: math.Log(0.125)}}}
	require.InDeltaMapValues(t, map[string]float64{"a": 0.625, "b": 0.25}, Probabilities(at), 1e-12)
}
