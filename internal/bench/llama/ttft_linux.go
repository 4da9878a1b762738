package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/llamatest"
)

// answer is the length of short answers, in tokens.
const answer = 8

func (b *bench) measureTTFT(ctx context.Context) error {
	b.report.TTFT = make([]Point, len(b.settings.sizes))
	for n := range b.settings.repetitions {
		for i, tokens := range b.settings.sizes {
			step := b.steps.Step(fmt.Sprintf("ttft, %s tokens, %d of %d", show.Count(tokens), n+1, b.settings.repetitions))
			p := &b.report.TTFT[i]
			p.Tokens = tokens
			err := b.ttftOnce(ctx, p)
			step.End(fmt.Sprintf("stock %s, ours %s", p.Stock.last(), p.Ours.last()), err)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// ttftOnce measures one length once, on each side: a conversation, kill -9, and its next turn.
func (b *bench) ttftOnce(ctx context.Context, p *Point) (err error) {
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
