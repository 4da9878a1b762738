package ollamatest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ollama/ollama/api"
)

// fromLine matches the lines of a Modelfile that name its model.
var fromLine = regexp.MustCompile(`(?mi)^FROM\s.*\n?`)

// CreateModel makes a model from a GGUF file with "ollama create". The file replaces the
// Modelfile's FROM lines; the Modelfile may be empty.
func (s *Server) CreateModel(ctx context.Context, name, ggufPath, modelfile string) error {
	gguf, err := filepath.Abs(ggufPath)
	if err != nil {
		return fmt.Errorf("finding the absolute path of %s: %w", ggufPath, err)
	}
	file, err := os.CreateTemp(s.Home(), "Modelfile-")
	if err != nil {
		return fmt.Errorf("writing a Modelfile: %w", err)
	}
	defer os.Remove(file.Name())
	_, err = fmt.Fprintf(file, "FROM %s\n%s", gguf, fromLine.ReplaceAllString(modelfile, ""))
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("writing a Modelfile: %w", err)
	}
	if out, err := s.Command(ctx, "create", name, "-f", file.Name()).CombinedOutput(); err != nil {
		return fmt.Errorf("creating model %s from %s: %w: %s", name, ggufPath, err, out)
	}
	return nil
}

// PS lists the loaded models, as "ollama ps" does.
func (s *Server) PS(ctx context.Context) ([]api.ProcessModelResponse, error) {
	response, err := s.API().ListRunning(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing loaded models: %w", err)
	}
	return response.Models, nil
}

// Unload makes the server drop the model, and waits until the model is not listed and its
// runner is gone. Unloading a model that is not loaded does nothing.
func (s *Server) Unload(ctx context.Context, model string) error {
	request := &api.GenerateRequest{Model: model, KeepAlive: KeepAlive(0)}
	if err := s.API().Generate(ctx, request, func(api.GenerateResponse) error { return nil }); err != nil {
		return fmt.Errorf("unloading model %s: %w", model, err)
	}
	return s.WaitUnloaded(ctx, model)
}

// WaitUnloaded waits until a model that is being unloaded is not listed and its runner is gone.
func (s *Server) WaitUnloaded(ctx context.Context, model string) error {
	return poll(ctx, "model "+model+" to be unloaded", func() (bool, error) {
		models, err := s.PS(ctx)
		var status api.StatusError
		if errors.As(err, &status) && status.StatusCode == http.StatusInternalServerError {
			return false, nil // Ollama reads its list without a lock and may see a half unloaded model
		}
		if err != nil {
			return false, err
		}
		runners, err := s.Runners()
		listed := slices.ContainsFunc(models, func(m api.ProcessModelResponse) bool {
			return m.Name == model || m.Name == model+":latest"
		})
		return !listed && len(runners) <= len(models), err
	})
}

// Request, ChatRequest and Message are upstream's. Stream is ignored: answers always stream,
// which gives a time to first token.
type (
	Request     = api.GenerateRequest
	ChatRequest = api.ChatRequest
	Message     = api.Message
)

// Result is an answer; with an error, the part of the answer that arrived.
type Result struct {
	Text     string
	Thinking string
	Chunks   int           // number of pieces of the answer
	Logprobs []api.Logprob // as sent, a float64 per token, if requested

	// Times by the client's clock since sending the request. TTFT ends with the first piece of the answer.
	TTFT  time.Duration
	Total time.Duration

	// As Ollama reports at the answer's end.
	DoneReason string // "stop", "length"
	api.Metrics
}

// TTFTMinusLoad is the time to first token without the loading of the model: the cost
// of prefill, or of a restore in its place, to the client.
func (r Result) TTFTMinusLoad() time.Duration { return r.TTFT - r.LoadDuration }

// Greedy returns options for an answer of at most tokens tokens that is the same each time,
// in a context of numCtx tokens. Callers may add options to the map.
func Greedy(tokens, numCtx int) map[string]any {
	return map[string]any{"temperature": 0, "seed": 1, "num_predict": tokens, "num_ctx": numCtx}
}

// KeepAlive is the time that the model stays loaded after a request; negative: forever.
func KeepAlive(d time.Duration) *api.Duration { return &api.Duration{Duration: d} }

// errEndedEarly reports a connection that was closed within an answer: upstream's client
// takes that for the end of the answer.
var errEndedEarly = errors.New("the answer stopped before its end: the server or its runner went away, see its log")

// Generate sends a request to /api/generate and reads the answer. Cancelling the context
// disconnects the client.
func (s *Server) Generate(ctx context.Context, request Request) (Result, error) {
	request.Stream = nil
	a := answer{start: time.Now()}
	err := s.API().Generate(ctx, &request, func(r api.GenerateResponse) error {
		a.add(r.Response, r.Thinking, r.Logprobs)
		if r.Done {
			a.end(r.DoneReason, r.Metrics)
		}
		return nil
	})
	return a.finish(ctx, "generating with "+request.Model, err)
}

// Chat does as Generate, for /api/chat.
func (s *Server) Chat(ctx context.Context, request ChatRequest) (Result, error) {
	request.Stream = nil
	a := answer{start: time.Now()}
	err := s.API().Chat(ctx, &request, func(r api.ChatResponse) error {
		a.add(r.Message.Content, r.Message.Thinking, r.Logprobs)
		if r.Done {
			a.end(r.DoneReason, r.Metrics)
		}
		return nil
	})
	return a.finish(ctx, "chatting with "+request.Model, err)
}

// answer collects a streamed answer.
type answer struct {
	start          time.Time
	text, thinking strings.Builder
	done           bool
	result         Result
}

func (a *answer) add(text, thinking string, logprobs []api.Logprob) {
	if a.result.Chunks == 0 {
		a.result.TTFT = time.Since(a.start)
	}
	a.result.Chunks++
	a.text.WriteString(text)
	a.thinking.WriteString(thinking)
	a.result.Logprobs = append(a.result.Logprobs, logprobs...)
}

func (a *answer) end(reason string, metrics api.Metrics) {
	a.done = true
	a.result.DoneReason, a.result.Metrics = reason, metrics
}

func (a *answer) finish(ctx context.Context, what string, err error) (Result, error) {
	a.result.Total = time.Since(a.start)
	a.result.Text, a.result.Thinking = a.text.String(), a.thinking.String()
	if err == nil && !a.done {
		err = cmp.Or(context.Cause(ctx), errEndedEarly)
	}
	if err != nil {
		return a.result, fmt.Errorf("%s: %w", what, err)
	}
	return a.result, nil
}
