package main

import (
	"context"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/ollama/ollama/api"

	"github.com/kvtier/kvtier/internal/bench/lab"
)

// topTokens bounds the tokens of a distribution. The others count as one token: the divergence is
// then at most that of whole distributions, and the same for a vocabulary of topTokens or fewer.
const topTokens = 4096

// distribution is the engine's distribution of one token.
type distribution struct {
	known bool // the engine gives none where it would end the text, or within a character
	best  string
	probs map[string]float64 // by the token's text; tokens with the same text count as one
	next  string             // the text's own token
}

// distributions asks for the distribution of each scored token, from the second on: a restored
// prompt ends in a token that is computed.
func (r *run) distributions(ctx context.Context, e *engine, progress func(done, total int64)) ([]distribution, error) {
	prompt := strings.Join(r.pieces[:r.Tokens], "")
	var all []distribution
	for i := r.Tokens; i < len(r.pieces)-1; i++ {
		prompt += r.pieces[i]
		next := r.pieces[i+1]
		if !utf8.ValidString(prompt) || !utf8.ValidString(next) {
			all = append(all, distribution{})
			continue
		}
		a, err := e.ask(ctx, prompt, topTokens, true)
		if err != nil {
			return nil, err
		}
		if i == r.Tokens && a.cached < r.Tokens {
			return nil, fmt.Errorf("restore the text: the engine took %d of %d tokens from pages; if Ollama was rebuilt meanwhile, run it again", a.cached, r.Tokens)
		}
		d := distribution{next: next}
		// A beginning of the text can have other tokens at its end than the whole text.
		if a.prompt == i+1 && len(a.logprobs) > 0 {
			d.fill(a.logprobs[0])
		}
		all = append(all, d)
		progress(int64(len(all)), int64(r.Scored-1))
	}
	return all, nil
}

func (d *distribution) fill(p api.Logprob) {
	d.known, d.best, d.probs = true, p.Token, lab.Probabilities(p)
}

// of is the probability of a token; of one that is not listed, the probability of all of them.
func (d *distribution) of(token string) float64 {
	if p, ok := d.probs[token]; ok {
		return p
	}
	rest := 1.0
	for _, p := range d.probs {
		rest -= p
	}
	return max(rest, lab.LeastProbability)
}

// Quality compares the engine after a restore with the engine that computed all.
type Quality struct {
	KL         float64 `json:"kl"`         // divergence, mean over tokens, in nats
	Top1       float64 `json:"top1"`       // share of tokens with the same most probable one
	Perplexity float64 `json:"perplexity"` // of the text after a restore
	Compared   int     `json:"compared"`   // tokens
	// Answered is the number of questions with the right answer, of Asked.
	Answered int `json:"lookups_answered"`
	Asked    int `json:"lookups"`
}

// compare computes the quality of got.
func compare(want, got []distribution) (q Quality) {
	nats := 0.0
	for i := range want {
		w, g := &want[i], &got[i]
		if !w.known || !g.known {
			continue
		}
		q.Compared++
		q.KL += lab.Divergence(w.probs, g.probs)
		nats -= math.Log(g.of(g.next))
		if w.best == g.best {
			q.Top1++
		}
	}
	if n := float64(q.Compared); n > 0 {
		q.KL, q.Top1, q.Perplexity = q.KL/n, q.Top1/n, math.Exp(nats/n)
	}
	return q
}
