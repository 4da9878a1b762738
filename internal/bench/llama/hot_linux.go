package main

import (
	"context"
	"fmt"
	"time"

	"github.com/kvtier/kvtier/internal/llamatest"
)

// Lengths of hot, in tokens.
const (
	hotPrompt = 1024
	hotAnswer = 128
)

// perRepetition is the number of pairs of requests of hot in a repetition.
const perRepetition = 10

// measureHot sends pairs of requests to a stock server and to ours, in turns.
func (b *bench) measureHot(ctx context.Context) error {
	r := &Hot{PromptTokens: hotPrompt, AnswerTokens: hotAnswer}
	b.report.Hot = r
	var servers [2]*llamatest.Server
	prompt := b.tokens(hotPrompt)
	for i, s := range []side{stock, ours} {
		server, err := b.start(ctx, s, hotPrompt)
		if err != nil {
			return err
		}
		defer server.Kill()
		if _, err := server.Complete(ctx, prompt, 1); err != nil {
			return err
		}
		servers[i] = server
	}
	n := b.settings.repetitions * perRepetition
	step := b.steps.Step(fmt.Sprintf("hot, %d pairs", n))
	err := b.hotPairs(ctx, servers, prompt, n, r)
	step.End(fmt.Sprintf("%.2f ms more", 1e3*r.Added.Median), err)
	return err
}

// hotPairs measures pairs; the side that goes first alternates.
func (b *bench) hotPairs(ctx context.Context, servers [2]*llamatest.Server, prompt []int32, n int, r *Hot) error {
	for pair := range n {
		var first [2]time.Duration
		var speed [2]float64
		for i := range servers {
			side := (i + pair) % 2
			short, err := servers[side].Complete(ctx, prompt, 1)
			if err != nil {
				return err
			}
			first[side] = short.Total
			long, err := servers[side].Complete(ctx, prompt, hotAnswer)
			if err != nil {
				return err
			}
			speed[side] = float64(long.Timings.Generated-1) / (long.Total - long.First).Seconds()
		}
		r.Added.AddSeconds(first[1] - first[0])
		r.Speed.Add(speed[1] / speed[0])
	}
	return nil
}
