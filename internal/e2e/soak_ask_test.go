package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptrace"
	"strings"
	"sync"
	"time"

	"github.com/ollama/ollama/api"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/soak"
)

// asked is a request with its text.
type asked struct {
	soak.Request
	messages []soak.Message
}

func (p *soakPlay) options(tokens int) map[string]any {
	options := oneThread(ollamatest.Greedy(tokens, soakContext))
	options["num_batch"] = p.batch
	return options
}

// raw is a request for the continuation of a text.
func (p *soakPlay) raw(messages []soak.Message, prompt string, tokens int) ollamatest.Request {
	return ollamatest.Request{
		Model: p.arch, Prompt: prompt, Raw: true, Images: p.images(messages), Options: p.options(tokens), Shift: &p.shift,
		Logprobs: true, TopLogprobs: soakTop, KeepAlive: ollamatest.KeepAlive(time.Hour),
	}
}

func (p *soakPlay) chat(a asked) ollamatest.ChatRequest {
	r := ollamatest.ChatRequest{
		Model: p.arch, Options: p.options(a.Answer), Shift: &p.shift,
		Logprobs: true, TopLogprobs: soakTop, KeepAlive: ollamatest.KeepAlive(time.Hour),
	}
	for _, m := range a.messages {
		r.Messages = append(r.Messages, api.Message{Role: m.Role, Content: m.Text, Images: p.images([]soak.Message{m})})
	}
	return r
}

func (p *soakPlay) images(messages []soak.Message) []api.ImageData {
	var images []api.ImageData
	for _, m := range messages {
		if m.Image != 0 {
			images = append(images, p.pictures[m.Image])
		}
	}
	return images
}

// ask makes a request and reads the whole answer.
func (p *soakPlay) ask(s *server, a asked) (ollamatest.Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if a.Kind == soak.Document {
		return s.Generate(ctx, p.raw(a.messages, a.messages[0].Text, a.Answer))
	}
	return s.Chat(ctx, p.chat(a))
}

// comparable is the part of an answer that upstream computes reliably: until the context is
// full. A shift then overwrites memory from which the logits of the batch under way are still
// read (in v0.16.1, Causal.shift computes a graph of its own while computeBatch is about to call
// Floats), so that the next token and those after it are sometimes arbitrary: all tokens, where
// the prompt fills the context. With tiering on the shift waits (awaitOutputs in patch 0005,
// TestFirstTokenOfAFullContext); the stock server is left out of the comparison for this reason
// alone. With four slots this also affects the other slots' tokens, so that only histories of
// one slot shift. When a request ends with its context, timing decides whether that next token
// is sent.
func comparable(r ollamatest.Result) []api.Logprob {
	return r.Logprobs[:max(0, min(len(r.Logprobs), soakContext-r.PromptEvalCount))]
}

// sent returns a context that calls f when a request was sent.
func sent(ctx context.Context, f func()) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { f() }})
}

// stream makes a request to the tiered server and reports the number of answer tokens so
// far, 0 when the request was sent.
func (p *soakPlay) stream(a asked, got func(tokens int)) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	ctx = sent(ctx, func() { got(0) })
	tokens := 0
	count := func(logprobs []api.Logprob) error {
		tokens += len(logprobs)
		got(tokens)
		return nil
	}
	if a.Kind == soak.Document {
		request := p.raw(a.messages, a.messages[0].Text, a.Answer)
		return p.tiered.API().Generate(ctx, &request, func(r api.GenerateResponse) error { return count(r.Logprobs) })
	}
	request := p.chat(a)
	return p.tiered.API().Chat(ctx, &request, func(r api.ChatResponse) error { return count(r.Logprobs) })
}

// force compares the servers' log probabilities inside of answers, after a part of the stock
// server's answer. So two servers whose answers differ after a close decision are compared
// beyond it.
func (p *soakPlay) force(requests []asked, answers []ollamatest.Result) error {
	var prompts []ollamatest.Request
	for i, a := range requests {
		tokens := answers[i].Logprobs
		for _, cut := range a.Cuts {
			if a.Kind != soak.GiveUp {
				prompts = append(prompts, p.raw(a.messages, p.prompt(a)+spoken(tokens[:int(cut*float64(len(tokens)))]), 1))
			}
		}
	}
	ask := func(s *server, results []ollamatest.Result) func() error {
		return func() error {
			return forAll(len(prompts), func(i int) (err error) {
				ctx, cancel := context.WithTimeout(context.Background(), timeout)
				defer cancel()
				results[i], err = s.Generate(ctx, prompts[i])
				return err
			})
		}
	}
	want, got := make([]ollamatest.Result, len(prompts)), make([]ollamatest.Result, len(prompts))
	if err := both(ask(p.stock, want), ask(p.tiered, got)); err != nil {
		return err
	}
	for i := range prompts {
		alone := func() (ollamatest.Result, error) { return p.stock.Generate(p.stock.context(), prompts[i]) }
		if err := p.agree(&want[i], got[i], alone); err != nil {
			return fmt.Errorf("after %q: %w", prompts[i].Prompt[max(0, len(prompts[i].Prompt)-80):], err)
		}
		p.probes++
	}
	return nil
}

func spoken(tokens []api.Logprob) string {
	var b strings.Builder
	for _, t := range tokens {
		b.WriteString(t.Token)
	}
	return b.String()
}

// both runs two functions at the same time.
func both(a, b func() error) error {
	return forAll(2, func(i int) error { return []func() error{a, b}[i]() })
}

// forAll calls a function for 0 to n-1 at the same time.
func forAll(n int, f func(i int) error) error {
	errs := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Add(1)
		go func() {
			defer group.Done()
			errs[i] = f(i)
		}()
	}
	group.Wait()
	return errors.Join(errs...)
}
