package soak

import (
	"math"
	"testing"

	"github.com/ollama/ollama/api"
	"github.com/stretchr/testify/require"
)

type listed struct {
	token   string
	logprob float64
}

// token is a position at which the first and likeliest token was chosen.
func token(best ...listed) api.Logprob {
	var l api.Logprob
	for _, b := range best {
		l.TopLogprobs = append(l.TopLogprobs, api.TokenLogprob{Token: b.token, Logprob: b.logprob})
	}
	l.TokenLogprob = l.TopLogprobs[0]
	return l
}

func TestSame(t *testing.T) {
	answer := func() []api.Logprob {
		return []api.Logprob{token(listed{"a", -1}, listed{"b", -2}), token(listed{"c", -1}, listed{"d", -3})}
	}
	require.NoError(t, Same(answer(), answer()))
	require.ErrorContains(t, Same(answer(), answer()[:1]), "1 tokens, want 2")
	require.ErrorContains(t, Same(answer()[:1], answer()), "2 tokens, want 1")

	for name, change := range map[string]func(l []api.Logprob){
		"the chosen one":       func(l []api.Logprob) { l[1].Logprob = math.Nextafter(-1, 0) },
		"one of the others":    func(l []api.Logprob) { l[1].TopLogprobs[1].Logprob = math.Nextafter(-3, 0) },
		"another token":        func(l []api.Logprob) { l[1].TopLogprobs[1].Token = "e" },
		"fewer are listed":     func(l []api.Logprob) { l[1].TopLogprobs = l[1].TopLogprobs[:1] },
		"zero and minus zero":  func(l []api.Logprob) { l[1].Logprob = math.Copysign(0, -1) },
		"another token chosen": func(l []api.Logprob) { l[1].Token = "d" },
	} {
		got := answer()
		change(got)
		require.ErrorContains(t, Same(answer(), got), "token 1 of 2", name)
	}
}

func TestWithin(t *testing.T) {
	want := []api.Logprob{token(listed{"a", -1}, listed{"b", -1.05}), token(listed{"c", -1}, listed{"d", -3})}
	near := []api.Logprob{token(listed{"a", -1.02}, listed{"b", -1.06}), token(listed{"c", -1.01}, listed{"d", -3})}
	apart, err := Within(want, near, 0.05)
	require.NoError(t, err)
	require.InDelta(t, 0.02, apart, 1e-9)
	_, err = Within(want, near, 0.015)
	require.ErrorContains(t, err, "token 0 of 2")

	_, err = Within(want, want[:1], 0.05)
	require.ErrorContains(t, err, "1 tokens, want 2")
	_, err = Within(want[:1], want, 0.05)
	require.ErrorContains(t, err, "2 tokens, want 1")

	parted := []api.Logprob{token(listed{"b", -1.01}, listed{"a", -1.03}), token(listed{"x", -9}, listed{"y", -9})}
	_, err = Within(want, parted, 0.05)
	require.NoError(t, err, "a close decision; later tokens follow another text")
	parted = []api.Logprob{token(listed{"b", -0.5}, listed{"a", -1.03}), token(listed{"x", -9}, listed{"y", -9})}
	_, err = Within(want, parted, 0.05)
	require.ErrorContains(t, err, "token 0 of 2")
}

// TestApartOfWhatIsNotListed: a token that one side does not list is less likely there than
// that side's last token.
func TestApartOfWhatIsNotListed(t *testing.T) {
	a := token(listed{"a", -1}, listed{"b", -2})
	for other, want := range map[listed]float64{
		{"c", -2.03}: 0.03, // b is at most -2.03 there
		{"c", -1.5}:  0.5,  // b is at most -1.5 there, but c is -2 at most here
	} {
		b := token(listed{"a", -1}, other)
		for _, sides := range [][2]api.Logprob{{a, b}, {b, a}} {
			d, err := Apart(sides[0], sides[1])
			require.NoError(t, err)
			require.InDelta(t, want, d, 1e-9)
		}
	}
}

func TestApartOfNothing(t *testing.T) {
	a := token(listed{"a", -1}, listed{"b", -2})
	for _, sides := range [][2]api.Logprob{
		{}, {a, token(listed{"a", -1})}, {a, token(listed{"a", math.NaN()}, listed{"b", -2})}, {a, token(listed{"a", math.Inf(-1)}, listed{"b", -2})},
	} {
		_, err := Apart(sides[0], sides[1])
		require.Error(t, err)
	}
}

func TestFollows(t *testing.T) {
	want := []api.Logprob{token(listed{"ab", -1}, listed{"x", -1.01}), token(listed{"c", -1}, listed{"d", -3})}
	require.NoError(t, Follows(want, "abc", 0.05, 0))
	require.NoError(t, Follows(want, "xyz", 0.05, 0), "the alternative was as likely")
	require.ErrorContains(t, Follows(want, "abd", 0.05, 0), "token 1 of 2")
	require.ErrorContains(t, Follows(want, "xyz", 0.005, 0), "token 0 of 2")
	require.ErrorContains(t, Follows(want, "ab", 0.05, 0), "token 1 of 2")
	require.NoError(t, Follows(want, "ab", 0.05, 1))
	require.ErrorContains(t, Follows(want, "", 0.005, 1), "token 0 of 2")
	require.ErrorContains(t, Follows(want, "abd", 0.05, 1), "token 1 of 2")
	require.ErrorContains(t, Follows(want, "abcd", 0.05, 0), `"d" follows 2 tokens`)
}
