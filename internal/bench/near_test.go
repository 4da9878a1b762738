package main

import (
	"math"
	"strings"
	"testing"

	"github.com/ollama/ollama/api"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/testmodel/trained"
)

// distribution has tokens named a, b, c … of the given probabilities.
func distribution(probabilities ...float64) api.Logprob {
	var l api.Logprob
	for i, p := range probabilities {
		l.TopLogprobs = append(l.TopLogprobs, api.TokenLogprob{Token: string(rune('a' + i)), Logprob: math.Log(p)})
	}
	return l
}

func TestNearSide(t *testing.T) {
	var s NearSide
	s.add(distribution(0.5, 0.4), distribution(0.5, 0.4))
	other := distribution(0.5, 0.4)
	other.TopLogprobs[0].Token = "z"
	s.add(distribution(0.5, 0.4), other)
	require.Equal(t, 1, s.Top1)
	require.Len(t, s.KL.Values, 2)
	require.InDelta(t, s.KL.Values[1]/2, s.Mean, 1e-12)
}

// TestNearChat: the parts of a chat are its text, in order.
func TestNearChat(t *testing.T) {
	prose := trained.Prose()
	require.Equal(t, prose, join(splitWords(prose)))
	require.Equal(t, []string{"One", " two,", " three\n four  five", " six"}, splitWords("One two, three\n four  five six"))

	c := newNearChat(prose, 1, 100)
	table, lookUps := trained.Table(1, nearTableLines)
	require.Equal(t, prose, strings.Replace(c.full(), table, "", 1)+join(c.next))
	require.Equal(t, lookUps, c.lookUps)
	require.Contains(t, c.after, table)
	require.Len(t, c.next, 100)
	require.InDelta(t, len(prose)/movedKeptShare, len(c.kept), 300)
}

func TestDivergence(t *testing.T) {
	a := map[string]float64{"a": 0.5, "b": 0.5}
	b := map[string]float64{"a": 0.75, "b": 0.25}
	require.Zero(t, divergence(a, a))
	require.InDelta(t, 0.5*math.Log(0.5/0.75)+0.5*math.Log(0.5/0.25), divergence(a, b), 1e-12)

	// Tokens that one of them does not list are one token.
	c := map[string]float64{"a": 0.5, "b": 0.3, "x": 0.1}
	d := map[string]float64{"a": 0.4, "b": 0.2, "y": 0.3}
	require.InDelta(t, 0.5*math.Log(0.5/0.4)+0.3*math.Log(0.3/0.2)+0.2*math.Log(0.2/0.4), divergence(c, d), 1e-12)
	require.InDelta(t, 0.5*math.Log(0.5/0.4)+0.25*math.Log(0.25/0.5)+0.25*math.Log(0.25/0.1),
		divergence(map[string]float64{"a": 0.5, "b": 0.25, "c": 0.25}, map[string]float64{"a": 0.4, "b": 0.5}), 1e-12)
}

func TestProbabilities(t *testing.T) {
	at := api.Logprob{TopLogprobs: []api.TokenLogprob{{Token: "a", Logprob: math.Log(0.5)}, {Token: "b", Logprob: math.Log(0.25)}, {Token: "a", Logprob: math.Log(0.125)}}}
	require.InDeltaMapValues(t, map[string]float64{"a": 0.625, "b": 0.25}, probabilities(at), 1e-12)
}
