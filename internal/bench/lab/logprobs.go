package lab

import (
	"math"

	"github.com/ollama/ollama/api"
)

const (
	// leastProbability is that of a token beside which the others, in f32, add up to 1.
	leastProbability = 1e-9
	// roundingLeft is more than the sum of a distribution differs from 1 by rounding.
	roundingLeft = 1e-4
)

// Probabilities are those of the listed tokens of a position, by the token's text. Tokens with the
// same text count as one.
func Probabilities(at api.Logprob) map[string]float64 {
	all := make(map[string]float64, len(at.TopLogprobs))
	for _, t := range at.TopLogprobs {
		all[t.Token] += math.Exp(t.Logprob)
	}
	return all
}

// Divergence is the Kullback-Leibler divergence of got from want, in nats: the sum of p·ln(p/q) over
// the tokens that both list, and over the others as one token, which can only make it smaller.
func Divergence(want, got map[string]float64) float64 {
	sum, restWant, restGot := 0.0, 1.0, 1.0
	for token, p := range want {
		q, ok := got[token]
		if !ok {
			continue
		}
		restWant, restGot = restWant-p, restGot-q
		if p > 0 && q > 0 {
			sum += p * math.Log(p/q)
		}
	}
	// Probabilities are rounded to f32: of a whole vocabulary nothing but rounding is left.
	if restWant > roundingLeft || restGot > roundingLeft {
		sum += max(restWant, leastProbability) * math.Log(max(restWant, leastProbability)/max(restGot, leastProbability))
	}
	return sum
}
