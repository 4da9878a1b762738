package soak

import (
	"fmt"
	"math"
	"strings"

	"github.com/ollama/ollama/api"
)

// Same returns an error unless two answers are equal to the last bit: tokens, their log
// probabilities, and those of the alternatives.
func Same(want, got []api.Logprob) error {
	for i := range min(len(want), len(got)) {
		if err := sameToken(want[i], got[i]); err != nil {
			return fmt.Errorf("token %d of %d: %w", i, len(want), err)
		}
	}
	if len(want) != len(got) {
		return fmt.Errorf("%d tokens, want %d", len(got), len(want))
	}
	return nil
}

func sameToken(want, got api.Logprob) error {
	if len(want.TopLogprobs) != len(got.TopLogprobs) {
		return fmt.Errorf("%d best tokens, want %d", len(got.TopLogprobs), len(want.TopLogprobs))
	}
	of := func(l api.Logprob) []api.TokenLogprob {
		return append([]api.TokenLogprob{l.TokenLogprob}, l.TopLogprobs...)
	}
	for i, w := range of(want) {
		g := of(got)[i]
		if w.Token != g.Token || math.Float64bits(w.Logprob) != math.Float64bits(g.Logprob) {
			return fmt.Errorf("%q at %v, want %q at %v", g.Token, g.Logprob, w.Token, w.Logprob)
		}
	}
	return nil
}

// Within compares two answers to the same prompt, token by token up to the first different
// token, and returns the largest distance of log probabilities. Within returns an error when
// the distance is more than bound, when the answers differ at a token whose alternatives
// were not that close, or when one answer ends before the other.
func Within(want, got []api.Logprob, bound float64) (apart float64, err error) {
	for i := range min(len(want), len(got)) {
		d, err := Apart(want[i], got[i])
		apart = max(apart, d)
		if err != nil {
			return apart, fmt.Errorf("token %d of %d: %w", i, len(want), err)
		}
		if d > bound {
			return apart, fmt.Errorf("token %d of %d: %v apart, more than %v: %v, want %v", i, len(want), d, bound, best(got[i]), best(want[i]))
		}
		if want[i].Token != got[i].Token {
			return apart, nil // later tokens follow another text
		}
	}
	if len(got) != len(want) {
		return apart, fmt.Errorf("%d tokens, want %d", len(got), len(want))
	}
	return apart, nil
}

// Follows compares a text, which comes without log probabilities, with an answer to the same prompt.
// Follows returns an error when they differ at a token whose best alternative was more than bound less
// likely, or when one ends before the other. The text may lack up to fewer of the last tokens.
func Follows(want []api.Logprob, text string, bound float64, fewer int) error {
	for i, w := range want {
		if text == "" && len(want)-i <= fewer {
			return nil
		}
		rest, same := strings.CutPrefix(text, w.Token)
		if same {
			text = rest
			continue
		}
		if len(w.TopLogprobs) > 1 && w.Logprob-w.TopLogprobs[1].Logprob <= bound {
			return nil // later tokens follow another text
		}
		return fmt.Errorf("token %d of %d: %.20q, want %q: %s", i, len(want), text, w.Token, best(w))
	}
	if text != "" {
		return fmt.Errorf("%.20q follows %d tokens, after which the answer should end", text, len(want))
	}
	return nil
}

// best prints the likeliest tokens of a position.
func best(l api.Logprob) string {
	var b strings.Builder
	for _, t := range l.TopLogprobs[:min(3, len(l.TopLogprobs))] {
		fmt.Fprintf(&b, "%q %.6g ", t.Token, t.Logprob)
	}
	return b.String() + "…"
}

// Apart is the largest distance of log probabilities at one position. A token that only one
// side lists is at most as likely on the other side as that side's last token. Apart returns
// an error unless both sides list the same number of tokens, at least one, with finite log
// probabilities.
func Apart(want, got api.Logprob) (float64, error) {
	if len(want.TopLogprobs) == 0 || len(want.TopLogprobs) != len(got.TopLogprobs) {
		return 0, fmt.Errorf("%d and %d best tokens cannot be compared", len(want.TopLogprobs), len(got.TopLogprobs))
	}
	apart := max(beyond(want.TopLogprobs, got.TopLogprobs), beyond(got.TopLogprobs, want.TopLogprobs))
	if math.IsNaN(apart) || math.IsInf(apart, 0) {
		return 0, fmt.Errorf("a log probability is no number: %v and %v", want.TopLogprobs, got.TopLogprobs)
	}
	return apart, nil
}

// beyond is the largest distance of a's log probabilities from b's. A token that b does not
// list is at most as likely as b's last token.
func beyond(a, b []api.TokenLogprob) float64 {
	last := b[len(b)-1].Logprob
	of := make(map[string]float64, len(b))
	for _, t := range b {
		of[t.Token] = t.Logprob
	}
	most := 0.0
	for _, t := range a {
		d := t.Logprob - last // not listed: less likely than the last
		if listed, ok := of[t.Token]; ok {
			d = math.Abs(t.Logprob - listed)
		}
		most = max(most, d)
	}
	return most
}
