package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// Lengths of hot, in tokens.
const (
	hotPrompt = 1024
	hotAnswer = 128
	hotWords  = 12_000 // of a text, of which llama-server makes the tokens
)

// hotRest is the time before each pair of requests: nobody asks again within a millisecond.
const hotRest = 50 * time.Millisecond

// Pairs of requests of hot in a repetition.
const (
	shortPairs = 100
	longPairs  = 10
)

// hot is requests whose prompt the slot holds.
type hot struct {
	PromptTokens int            `json:"prompt_tokens"`
	AnswerTokens int            `json:"answer_tokens"`
	Added        measure.Series `json:"added" unit:"s"` // ours less stock
	Text         measure.Series `json:"text"`           // time of a long text, ours over stock
	Speed        measure.Series `json:"speed"`          // of long answers, ours over stock
}

// smallest is as small as a model can be: our share of a time does not depend on the model, and the
// time of computing would hide it.
var smallest = testmodel.Shape{Layers: 1, Embed: 64, Heads: 1, KVHeads: 1}

// measureHot sends pairs of requests to a stock server and to ours, in turns.
func (b *bench) measureHot(ctx context.Context) (any, error) {
	r := &hot{PromptTokens: hotPrompt, AnswerTokens: hotAnswer}
	speed := func(a llamatest.Answer) float64 { // after the first token
		return float64(a.Timings.Generated-1) / (a.Total - a.First).Seconds()
	}
	for _, kind := range []hotKind{
		{"short answers", smallest, b.tokens(hotPrompt), hotPrompt, 1, b.repetitions * shortPairs, &r.Added,
			func(stock, ours llamatest.Answer) float64 { return (ours.Total - stock.Total).Seconds() }},
		{"long texts", smallest, strings.Repeat("word ", hotWords), 4 * hotWords, 1, b.repetitions * longPairs, &r.Text,
			func(stock, ours llamatest.Answer) float64 { return ours.Total.Seconds() / stock.Total.Seconds() }},
		// This model computes some 100 tokens in a second with one thread.
		{"long answers", testmodel.Shape{Embed: 768, Heads: 12}, b.tokens(hotPrompt), hotPrompt, hotAnswer, b.repetitions * longPairs, &r.Speed,
			func(stock, ours llamatest.Answer) float64 { return speed(ours) / speed(stock) }},
	} {
		if err := b.Step(fmt.Sprintf("hot, %d %s", kind.pairs, kind.name), func() (string, error) {
			err := b.hotPairs(ctx, kind)
			return fmt.Sprintf("%.3g", kind.into.Median), err
		}); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// hotKind is a prompt of some tokens, and what is measured of its answers.
type hotKind struct {
	name                   string
	shape                  testmodel.Shape
	prompt                 any
	tokens, predict, pairs int
	into                   *measure.Series
	figure                 func(stock, ours llamatest.Answer) float64
}

// hotPairs has a stock server and ours answer a prompt that their slots hold.
func (b *bench) hotPairs(ctx context.Context, kind hotKind) (err error) {
	defer func() { err = errors.Join(err, b.clean()) }()
	kind.shape.Arch, kind.shape.Context = b.shape.Arch, trainedContext
	m := served{model: filepath.Join(b.dir, "hot.gguf"), tokens: kind.tokens, threads: oneThreadLess()}
	if err := testmodel.Write(m.model, kind.shape.WithDefaults()); err != nil {
		return err
	}
	servers := make(map[side]*llamatest.Server)
	for _, s := range []side{stock, ours} {
		if servers[s], err = b.start(ctx, s, m); err != nil {
			return err
		}
		defer servers[s].Kill()
	}
	for n := range 1 + kind.pairs { // the first one fills the slots
		time.Sleep(hotRest)
		of, mine, err := pair(n, func(s side) (llamatest.Answer, error) { return servers[s].Complete(ctx, kind.prompt, kind.predict) })
		if err != nil {
			return err
		}
		if n > 0 {
			kind.into.Add(kind.figure(of, mine))
		}
	}
	return nil
}
