package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"

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

// measureHot sends pairs of requests to a stock server and to ours, in turns.
func (b *bench) measureHot(ctx context.Context) (any, error) {
	r := &hot{PromptTokens: hotPrompt, AnswerTokens: hotAnswer}
	n := b.settings.repetitions * shortPairs
	if err := b.step(fmt.Sprintf("hot, %d short answers", n), func() (string, error) {
		err := b.hotTime(ctx, n, r)
		return fmt.Sprintf("%.2f ms more", 1e3*r.Added.Median), err
	}); err != nil {
		return nil, err
	}
	n = b.settings.repetitions * longPairs
	if err := b.step(fmt.Sprintf("hot, %d long texts", n), func() (string, error) {
		err := b.hotText(ctx, n, r)
		return fmt.Sprintf("%.3f of the time", r.Text.Median), err
	}); err != nil {
		return nil, err
	}
	return r, b.step(fmt.Sprintf("hot, %d long answers", n), func() (string, error) {
		err := b.hotSpeed(ctx, n, r)
		return fmt.Sprintf("%.3f of the speed", r.Speed.Median), err
	})
}

// hotTime measures the time of requests. The model is as small as a model can be: our share of the
// time does not depend on the model, and the time of computing would hide it.
func (b *bench) hotTime(ctx context.Context, pairs int, r *hot) error {
	return b.hotPairs(ctx, smallest, b.tokens(hotPrompt), hotPrompt, pairs, 1, func(a, ours llamatest.Answer) { r.Added.AddSeconds(ours.Total - a.Total) })
}

var smallest = testmodel.Shape{Layers: 1, Embed: 64, Heads: 1, KVHeads: 1}

// hotText measures the time of requests with a long text.
func (b *bench) hotText(ctx context.Context, pairs int, r *hot) error {
	text := strings.Repeat("word ", hotWords)
	return b.hotPairs(ctx, smallest, text, 4*hotWords, pairs, 1, func(a, ours llamatest.Answer) { r.Text.Add(ours.Total.Seconds() / a.Total.Seconds()) })
}

// hotSpeed measures the speed of answers, after their first token. The model computes some 100
// tokens in a second with one thread.
func (b *bench) hotSpeed(ctx context.Context, pairs int, r *hot) error {
	speed := func(a llamatest.Answer) float64 {
		return float64(a.Timings.Generated-1) / (a.Total - a.First).Seconds()
	}
	return b.hotPairs(ctx, testmodel.Shape{Embed: 768, Heads: 12}, b.tokens(hotPrompt), hotPrompt, pairs, hotAnswer, func(a, ours llamatest.Answer) { r.Speed.Add(speed(ours) / speed(a)) })
}

// hotPairs has a stock server and ours answer a prompt that their slots hold, of some tokens; the side
// that goes first alternates.
func (b *bench) hotPairs(ctx context.Context, shape testmodel.Shape, prompt any, tokens, pairs, predict int, note func(stock, ours llamatest.Answer)) (err error) {
	defer func() { err = errors.Join(err, b.clean()) }()
	shape.Arch, shape.Context = b.shape.Arch, trainedContext
	model := filepath.Join(b.dir, "hot.gguf")
	if err := testmodel.Write(model, shape.WithDefaults()); err != nil {
		return err
	}
	threads := max(1, runtime.NumCPU()-1)
	var servers [2]*llamatest.Server
	for i, s := range []side{stock, ours} {
		if servers[i], err = b.startModel(ctx, s, model, tokens, threads); err != nil {
			return err
		}
		defer servers[i].Kill()
	}
	for pair := range 1 + pairs { // the first one fills the slots
		var answers [2]llamatest.Answer
		ask := func(i int) func() error {
			return func() (err error) { answers[i], err = servers[i].Complete(ctx, prompt, predict); return err }
		}
		if err := measure.InTurns(pair, ask(0), ask(1)); err != nil {
			return err
		}
		if pair > 0 {
			note(answers[0], answers[1])
		}
	}
	return nil
}
