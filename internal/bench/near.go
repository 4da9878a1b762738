package main

import (
	"context"
	"fmt"
	"math"
	"strings"
	"unicode"

	"github.com/ollama/ollama/api"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/models"
	"github.com/kvtier/kvtier/internal/testmodel/trained"
)

const (
	nearTexts      = 2   // parts of the held-out text, each a chat that outgrew its context
	nearPositions  = 128 // words of each, before which distributions are compared
	nearTableLines = 12  // look-ups in the moved part of each
	nearTop        = 20  // compared tokens, the most that Ollama gives

	quickNearPositions = 2
)

// nearChat is a chat whose oldest part after its beginning is left out. Its parts join between
// words, so that they have the same tokens wherever they stand.
type nearChat struct {
	kept, out, after string
	next             []string // words after the chat
	lookUps          []trained.LookUp
}

func (c nearChat) full() string  { return c.kept + c.out + c.after }
func (c nearChat) moved() string { return c.kept + c.after }

// newNearChat divides a text: its last words are next, 1/16 of the others is kept, and half of
// those after it is left out. A table stands in the middle of the moved part.
func newNearChat(text string, seed int64, positions int) nearChat {
	words := splitWords(text)
	n := len(words) - positions
	kept := n / movedKeptShare
	after := kept + (n-kept)/2
	middle := (after + n) / 2
	table, lookUps := trained.Table(seed, nearTableLines)
	return nearChat{
		kept: join(words[:kept]), out: join(words[kept:after]),
		after:   join(words[after:middle]) + table + join(words[middle:n]),
		next:    words[n:],
		lookUps: lookUps,
	}
}

// splitWords cuts a text before each letter that follows one space after something else: the
// tokenizer cuts there, too.
func splitWords(text string) (words []string) {
	runes, from := []rune(text), 0
	for i := 1; i+1 < len(runes); i++ {
		if runes[i] == ' ' && !unicode.IsSpace(runes[i-1]) && unicode.IsLetter(runes[i+1]) {
			words = append(words, string(runes[from:i]))
			from = i
		}
	}
	return append(words, string(runes[from:]))
}

func join(words []string) string { return strings.Join(words, "") }

// Near is the quality of text reused at another position (OLLAMA_KV_TIER_REUSE=shifted) in the
// trained model, against computing all of the prompt.
type Near struct {
	Texts   int   `json:"texts"`
	Tokens  []int `json:"tokens"`         // of each text's prompt
	Shifted []int `json:"shifted_tokens"` // those among them from another position
	Skipped int   `json:"skipped"`        // positions without a token on one side

	Moved NearSide `json:"moved"`
	// WithoutKept is computed without the beginning that the moved text did not stand behind,
	// for scale.
	WithoutKept NearSide `json:"without_kept"`

	Asked         int `json:"asked"` // look-ups in the moved text
	RightComputed int `json:"right_computed"`
	RightMoved    int `json:"right_moved"`
}

// NearSide compares distributions with those of computing.
type NearSide struct {
	KL   measure.Series `json:"kl"` // nats, of each position
	Mean float64        `json:"kl_mean"`
	Top1 int            `json:"top1"` // positions with the same best token
}

func (s *NearSide) add(want, got api.Logprob) {
	s.KL.Add(divergence(probabilities(want), probabilities(got)))
	s.Mean += (s.KL.Values[len(s.KL.Values)-1] - s.Mean) / float64(len(s.KL.Values))
	if want.TopLogprobs[0].Token == got.TopLogprobs[0].Token {
		s.Top1++
	}
}

// measureNear measures the quality of text that is reused at another position, with a model
// whose attention was learned.
func measureNear(ctx context.Context, r *rig) (any, error) {
	model, err := models.Trained(r.dir, "kvtier-trained")
	if err != nil {
		return nil, err
	}
	positions := nearPositions
	if r.quick {
		positions = quickNearPositions
	}
	words := splitWords(trained.Prose())
	t := &Near{Texts: nearTexts}
	err = r.Repeat("near, text", nearTexts, func(i int) (string, error) {
		part := join(words[i*len(words)/nearTexts : (i+1)*len(words)/nearTexts])
		c := newNearChat(part, int64(i), positions)
		// Flash attention is off: on a CPU it adds up in f16, which would blur the comparison.
		o := lab.Options{Model: model, NumCtx: trained.ContextTokens, Env: []string{"OLLAMA_FLASH_ATTENTION=0"}}
		return "", r.serve(ctx, o, func(plain *lab.Lab) error {
			o.Env = append(o.Env, "OLLAMA_KV_TIER_REUSE=shifted")
			return r.fresh(ctx, o, func(tiers *lab.Lab, _ string) error { return t.compare(ctx, r, plain, tiers, c) })
		})
	})
	return t, err
}

// compare compares one chat on two servers: the distributions before each of the words after the
// chat, and the words of the table in the moved text.
func (t *Near) compare(ctx context.Context, r *rig, plain, tiers *lab.Lab, c nearChat) error {
	if _, err := r.ask(ctx, tiers, c.full(), 1); err != nil { // stores the chat
		return err
	}
	if _, err := r.askShort(ctx, tiers, "Another chat."); err != nil {
		return err
	}
	// The question that takes the moved text; all others go on in its slot.
	first, err := r.ask(ctx, tiers, c.moved(), 1)
	if err != nil {
		return err
	}
	t.Tokens, t.Shifted = append(t.Tokens, first.PromptEvalCount), append(t.Shifted, first.Restored.Shifted)
	if first.Restored.Shifted < first.PromptEvalCount/2 {
		return fmt.Errorf("%d of %d tokens were reused at another position; the server's log (-log) says why", first.Restored.Shifted, first.PromptEvalCount)
	}
	var computed, moved, alone []*api.Logprob
	for _, side := range []struct {
		into   *[]*api.Logprob
		server *lab.Lab
		prompt string
	}{{&computed, plain, c.moved()}, {&moved, tiers, c.moved()}, {&alone, plain, c.after}} {
		if *side.into, err = distributions(ctx, side.server, side.prompt, c.next); err != nil {
			return err
		}
	}
	for i, want := range computed {
		if want == nil || moved[i] == nil || alone[i] == nil {
			t.Skipped++
			continue
		}
		t.Moved.add(*want, *moved[i])
		t.WithoutKept.add(*want, *alone[i])
	}
	t.Asked += len(c.lookUps)
	for _, l := range c.lookUps {
		for server, right := range map[*lab.Lab]*int{plain: &t.RightComputed, tiers: &t.RightMoved} {
			answer, err := r.ask(ctx, server, c.moved()+l.Question, trained.AnswerTokens)
			if err != nil {
				return err
			}
			if l.Right(answer.Text) {
				*right++
			}
		}
	}
	return nil
}

// distributions asks for the token after a prompt and each number of words. An entry is nil
// where Ollama sends no token: the text would end there, or within a character.
func distributions(ctx context.Context, l *lab.Lab, prompt string, words []string) ([]*api.Logprob, error) {
	var all []*api.Logprob
	for _, word := range words {
		answer, err := l.Ask(ctx, lab.Question{Prompt: prompt, Tokens: 1, Raw: true, Logprobs: true, Top: nearTop})
		if err != nil {
			return nil, err
		}
		var at *api.Logprob
		if len(answer.Logprobs) > 0 {
			at = &answer.Logprobs[0]
		}
		all = append(all, at)
		prompt += word
	}
	return all, nil
}

const (
	// leastProbability is that of a token beside which the others, in f32, add up to 1.
	leastProbability = 1e-9
	// roundingLeft is more than the sum of a distribution differs from 1 by rounding.
	roundingLeft = 1e-4
)

// probabilities are those of the listed tokens of a position, by the token's text. Tokens with the
// same text count as one.
func probabilities(at api.Logprob) map[string]float64 {
	all := make(map[string]float64, len(at.TopLogprobs))
	for _, t := range at.TopLogprobs {
		all[t.Token] += math.Exp(t.Logprob)
	}
	return all
}

// divergence is the Kullback-Leibler divergence of got from want, in nats: the sum of p·ln(p/q) over
// the tokens that both list, and over the others as one token, which can only make it smaller.
func divergence(want, got map[string]float64) float64 {
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
	// probabilities are rounded to f32: of a whole vocabulary nothing but rounding is left.
	if restWant > roundingLeft || restGot > roundingLeft {
		sum += max(restWant, leastProbability) * math.Log(max(restWant, leastProbability)/max(restGot, leastProbability))
	}
	return sum
}
