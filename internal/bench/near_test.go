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
