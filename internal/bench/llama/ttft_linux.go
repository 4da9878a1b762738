package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/llamatest"
)

// answer is the length of short answers, in tokens.
const answer = 8

// ttft is time to first token of a conversation after kill -9.
type ttft struct {
	Points []point `json:"points" unit:"s"`
}

// point is one length.
type point struct {
	Tokens  int            `json:"prompt_tokens"`
	Reused  int            `json:"reused"` // tokens, by ours
	Cold    measure.Series `json:"cold"`   // ours, with nothing stored
	Stock   measure.Series `json:"stock"`
	Whole   measure.Series `json:"whole_slot"`
	Ours    measure.Series `json:"ours"`
	Speedup float64        `json:"speedup" unit:"ratio"` // stock over ours
}

func (b *bench) measureTTFT(ctx context.Context) (any, error) {
	r := &ttft{Points: make([]point, len(b.settings.sizes))}
	for n := range b.settings.repetitions {
		for i, tokens := range b.settings.sizes {
			p := &r.Points[i]
			p.Tokens = tokens
			if err := b.step(fmt.Sprintf("ttft, %s tokens, %d of %d", show.Count(tokens), n+1, b.settings.repetitions), func() (string, error) {
				err := b.ttftOnce(ctx, p)
				return fmt.Sprintf("stock %s, ours %s", show.Number(p.Stock.Median, "s"), show.Number(p.Ours.Median, "s")), err
			}); err != nil {
				return nil, err
			}
			p.Speedup = p.Stock.Median / p.Ours.Median
		}
	}
	return r, nil
}

// ttftOnce measures one length once, on each side: a conversation, kill -9, and its next turn.
func (b *bench) ttftOnce(ctx context.Context, p *point) (err error) {
	defer func() { err = errors.Join(err, b.clean()) }()
	first := b.tokens(p.Tokens)
	next := slices.Concat(first, b.tokens(answer))
	var want []int32
	for _, s := range []side{stock, whole, ours} {
		cold, err := b.before(ctx, s, first)
		if err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
		again, err := b.after(ctx, s, p.Tokens, next)
		if err != nil {
			return fmt.Errorf("%s, after kill -9: %w", s, err)
		}
		switch s {
		case stock:
			want = again.Tokens
			p.Stock.AddSeconds(again.First)
		case whole:
			p.Whole.AddSeconds(again.First)
		case ours:
			p.Cold.AddSeconds(cold.First)
			p.Ours.AddSeconds(again.First)
			p.Reused = again.Timings.Cached
		}
		if !slices.Equal(want, again.Tokens) {
			return fmt.Errorf("%s: the answer is another one", s)
		}
	}
	return nil
}

// wholeFile is the name of a file with a whole slot.
const wholeFile = "slot.bin"

// before asks once and ends the server.
func (b *bench) before(ctx context.Context, s side, prompt []int32) (llamatest.Answer, error) {
	server, err := b.start(ctx, s, len(prompt))
	if err != nil {
		return llamatest.Answer{}, err
	}
	defer server.Kill()
	a, err := server.Complete(ctx, prompt, answer)
	if err == nil && s == whole {
		err = server.Slot(ctx, "save", wholeFile)
	}
	return a, err
}

// after asks a new server. The time in which a whole slot is restored counts.
func (b *bench) after(ctx context.Context, s side, tokens int, prompt []int32) (llamatest.Answer, error) {
	server, err := b.start(ctx, s, tokens)
	if err != nil {
		return llamatest.Answer{}, err
	}
	defer server.Kill()
	began := time.Now()
	if _, err := os.Stat(filepath.Join(b.files(), wholeFile)); err == nil && s == whole {
		if err := server.Slot(ctx, "restore", wholeFile); err != nil {
			return llamatest.Answer{}, err
		}
	}
	restoring := time.Since(began)
	a, err := server.Complete(ctx, prompt, answer)
	a.First += restoring
	return a, err
}
