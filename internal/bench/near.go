package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/ollama/ollama/api"

	"github.com/kvtier/kvtier/internal/bench/lab"
	"github.com/kvtier/kvtier/internal/bench/models"
	"github.com/kvtier/kvtier/internal/testmodel/trained"
)

const (
	nearTexts      = 2    // parts of the held-out text, each a chat that outgrew its context
	nearPositions  = 128  // words of each, before which distributions are compared
	nearTableLines = 12   // look-ups in the moved part of each
	nearTop        = 20   // compared tokens, the most that Ollama gives
	nearRestMin    = 1e-9 // least probability of all other tokens together, of which rounding leaves none

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

// measureNear measures the quality of text that is reused at another position, with a model
// whose attention was learned.
func (b *bench) measureNear(ctx context.Context) error {
	model, err := models.Trained(b.dir, "kvtier-trained")
	if err != nil {
		return err
	}
	positions := nearPositions
	if b.settings.quick {
		positions = quickNearPositions
	}
	words := splitWords(trained.Prose())
	b.report.Near = &Near{}
	for i := range nearTexts {
		part := join(words[i*len(words)/nearTexts : (i+1)*len(words)/nearTexts])
		step := b.steps.Step(fmt.Sprintf("near, text %d of %d", i+1, nearTexts))
		err := b.measureNearChat(ctx, model, newNearChat(part, int64(i), positions))
		step.End("", err)
		if err != nil {
			return err
		}
	}
	return nil
}

// measureNearChat compares one chat on two servers of its own. Flash attention is off: on a
// CPU it adds up in f16, which would blur the comparison.
func (b *bench) measureNearChat(ctx context.Context, model lab.Model, c nearChat) (err error) {
	r := b.report.Near
	r.Texts++
	options := lab.Options{Model: model, NumCtx: trained.ContextTokens, Env: []string{"OLLAMA_FLASH_ATTENTION=0"}}
	plain, err := b.start(ctx, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plain.Close()) }()
	options.Root = filepath.Join(b.dir, fmt.Sprint("near-", r.Texts))
	options.Env = append(options.Env, "OLLAMA_KV_TIER_REUSE=shifted")
	tiers, err := b.start(ctx, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tiers.Close()) }()
	if b.report.Versions.Kvtier, err = tiers.Version(ctx); err != nil {
		return err
	}

	if _, err := b.ask(ctx, tiers, c.full(), 1); err != nil { // stores the chat
		return err
	}
	if _, err := b.askShort(ctx, tiers, "Another chat."); err != nil {
		return err
	}
	// The question that takes the moved text; all others go on in its slot.
	first, err := b.ask(ctx, tiers, c.moved(), 1)
	if err != nil {
		return err
	}
	r.Tokens, r.Shifted = append(r.Tokens, first.PromptEvalCount), append(r.Shifted, first.Restored.Shifted)
	if first.Restored.Shifted < first.PromptEvalCount/2 {
		return fmt.Errorf("%d of %d tokens were reused at another position; the server's log (-log) says why", first.Restored.Shifted, first.PromptEvalCount)
	}
	if err := b.compareNear(ctx, plain, tiers, c); err != nil {
		return err
	}
	return b.lookUpNear(ctx, plain, tiers, c)
}

// compareNear compares the distributions before each of the words after the chat.
func (b *bench) compareNear(ctx context.Context, plain, tiers *lab.Lab, c nearChat) error {
	r := b.report.Near
	computed, err := b.distributions(ctx, plain, c.moved(), c.next)
	if err != nil {
		return err
	}
	moved, err := b.distributions(ctx, tiers, c.moved(), c.next)
	if err != nil {
		return err
	}
	alone, err := b.distributions(ctx, plain, c.after, c.next)
	if err != nil {
		return err
	}
	for i, want := range computed {
		if want == nil || moved[i] == nil || alone[i] == nil {
			r.Skipped++
			continue
		}
		r.Moved.add(*want, *moved[i])
		r.WithoutKept.add(*want, *alone[i])
	}
	return nil
}

// distributions asks for the token after a prompt and each number of words. An entry is nil
// where Ollama sends no token: the text would end there, or within a character.
func (b *bench) distributions(ctx context.Context, l *lab.Lab, prompt string, words []string) ([]*api.Logprob, error) {
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

// lookUpNear asks for the words of the table in the moved text.
func (b *bench) lookUpNear(ctx context.Context, plain, tiers *lab.Lab, c nearChat) error {
	r := b.report.Near
	for _, l := range c.lookUps {
		r.Asked++
		for _, side := range []struct {
			lab   *lab.Lab
			right *int
		}{{plain, &r.RightComputed}, {tiers, &r.RightMoved}} {
			answer, err := b.ask(ctx, side.lab, c.moved()+l.Question, trained.AnswerTokens)
			if err != nil {
				return err
			}
			if l.Right(answer.Text) {
				*side.right++
			}
		}
	}
	return nil
}

// divergence is the Kullback-Leibler divergence of b from a in nats, over the tokens among the
// best of both and one class for all others. Classes can only make it smaller.
func divergence(a, b api.Logprob) float64 {
	other := make(map[string]float64)
	for _, top := range b.TopLogprobs {
		other[top.Token] = top.Logprob
	}
	sum, restA, restB := 0.0, 1.0, 1.0
	for _, top := range a.TopLogprobs {
		if logprob, ok := other[top.Token]; ok {
			p := math.Exp(top.Logprob)
			sum += p * (top.Logprob - logprob)
			restA, restB = restA-p, restB-math.Exp(logprob)
		}
	}
	restA, restB = max(restA, nearRestMin), max(restB, nearRestMin)
	return sum + restA*math.Log(restA/restB)
}
