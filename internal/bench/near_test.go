package main

import (
	"bytes"
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

func TestDivergence(t *testing.T) {
	half := distribution(0.5, 0.5)
	require.InDelta(t, 0, divergence(half, half), 1e-12)
	require.InDelta(t, 0.5*math.Log(0.5/0.25)+0.5*math.Log(0.5/0.75), divergence(half, distribution(0.25, 0.75)), 1e-6)
	// c is known to one side alone, and so is in the class of others.
	want := 0.5*math.Log(0.5/0.4) + 0.25*math.Log(0.25/0.5) + 0.25*math.Log(0.25/0.1)
	require.InDelta(t, want, divergence(distribution(0.5, 0.25, 0.25), distribution(0.4, 0.5)), 1e-9)
}

func TestNearSide(t *testing.T) {
	var s NearSide
	s.add(distribution(0.5, 0.4), distribution(0.5, 0.4))
	other := distribution(0.5, 0.4)
	other.TopLogprobs[0].Token = "z"
	s.add(distribution(0.5, 0.4), other)
	require.Equal(t, 1, s.Top1)
	require.Len(t, s.KL.Values, 2)
	require.InDelta(t, s.KL.Values[1]/2, s.mean(), 1e-12)

	var out bytes.Buffer
	n := Near{Texts: 1, Tokens: []int{1600}, Shifted: []int{1408}, Moved: s, WithoutKept: s, Asked: 12, RightComputed: 11, RightMoved: 10}
	n.print(&out)
	require.Contains(t, out.String(), "1 prompts of 1,600 tokens, 1,408 of them reused")
	require.Regexp(t, `computed +11 of 12\n`, out.String())
	require.Regexp(t, `moved text reused +0\.\d{4} \(median 0\.\d{4}\) +50\.0 % +10 of 12\n`, out.String())
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
