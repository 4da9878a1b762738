package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/ollama/ollama/api"

	"github.com/kvtier/kvtier/internal/bench/lab"
)

// engine is a patched Ollama with the model loaded, and the runner of the model.
type engine struct {
	*lab.Lab
	runner *url.URL
}

// Bounds of the time for a prompt, of which large models compute thousands of tokens, and for
// storing its pages.
const (
	askMax   = time.Hour
	flushMax = 5 * time.Minute
)

// modelName is the model's name on the engine.
const modelName = "kvtier-codecs"

// contextRoom is the room in the context behind the measured tokens, for questions and answers.
const contextRoom = 512

// context is the size of the engine's context, in tokens.
func (r *run) context() int { return min(r.Model.Context, r.Tokens+r.Scored+contextRoom) }

// start starts an engine that keeps its pages below root.
func (r *run) start(ctx context.Context, root string) (*engine, error) {
	l, err := lab.Start(ctx, lab.Options{
		Model:  lab.Model{Name: modelName, GGUF: r.Model.Path, Models: filepath.Join(r.dir, "models")},
		Root:   root,
		NumCtx: r.context(), Threads: r.Threads,
		Env: []string{"OLLAMA_FLASH_ATTENTION=0", "OLLAMA_KV_CACHE_TYPE=f16", "OLLAMA_KV_TIER_TEST=1"},
	})
	if err != nil {
		return nil, err
	}
	e := &engine{Lab: l}
	if err := e.load(ctx, r.Model.Path); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return e, nil
}

// logPatience is how long a line of the log may come later than the answer.
const logPatience = 10 * time.Second

// load loads the model: a request without a prompt does no more.
func (e *engine) load(ctx context.Context, path string) error {
	if _, err := e.Ask(ctx, lab.Question{}); err != nil {
		return fmt.Errorf("load %s: %w; its log says:\n%s", path, err, troubles(e.Logs()))
	}
	if reason := e.TierOff(); reason != "" {
		return fmt.Errorf("measure with %s: tiering is off for this model: %s; choose another model", path, reason)
	}
	// The log comes through a pipe, and may come after the answer.
	wait, cancel := context.WithTimeout(ctx, logPatience)
	defer cancel()
	if e.WaitLog(wait, `msg="kv tier: on"`) != nil {
		return errors.New("measure with the engine found: it stores no pages; run `make build` for a patched Ollama, or name one with KVTIER_OLLAMA")
	}
	var err error
	e.runner, err = e.RunnerURL()
	return err
}

// troublesMax is the number of the log's lines that an error shows.
const troublesMax = 4

// trouble finds lines of the engine's log that tell why it ended.
var trouble = regexp.MustCompile(`(?m)^.*(panic: |fatal error: |GGML_ASSERT|level=ERROR|[Ee]rror: ).*$`)

// troubles returns the first lines that tell of an error; the log ends with the engine.
func troubles(log string) string {
	return strings.Join(trouble.FindAllString(log, troublesMax), "\n")
}

// completion is a request to a runner: the part of upstream's llm.CompletionRequest that is used.
type completion struct {
	Prompt      string
	Options     map[string]any
	Logprobs    bool
	TopLogprobs int
}

// completed is a piece of a runner's answer; the last has Done.
type completed struct {
	Done     bool          `json:"done"`
	Prompt   int           `json:"prompt_eval_count"`
	Cached   *int          `json:"prompt_eval_cached_count"`
	Logprobs []api.Logprob `json:"logprobs"`
}

// answer is the answer to a prompt.
type answer struct {
	prompt   int // tokens
	cached   int // the part of them that was not computed
	logprobs []api.Logprob
}

// errTooLong reports a prompt that does not fit into the context.
var errTooLong = errors.New("the prompt is longer than the context")

// ask lets the runner compute a prompt, and the token after it with the probabilities of top
// others.
func (e *engine) ask(ctx context.Context, prompt string, top int, private bool) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, askMax)
	defer cancel()
	body, err := json.Marshal(completion{
		Prompt:   prompt,
		Options:  map[string]any{"num_predict": 1, "temperature": 0, "kv_store": !private},
		Logprobs: top > 0, TopLogprobs: top,
	})
	if err != nil {
		return answer{}, err
	}
	response, err := e.post(ctx, body, "completion")
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		return readAnswer(response.Body)
	case http.StatusBadRequest:
		return answer{}, errTooLong
	}
	text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	return answer{}, fmt.Errorf("ask the engine's runner: %s: %s", response.Status, bytes.TrimSpace(text))
}

// post sends a request to the runner.
func (e *engine) post(ctx context.Context, body []byte, path ...string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.runner.JoinPath(path...).String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask the engine's runner, did it end?: %w", err)
	}
	return response, nil
}

// flush returns when the runner has stored all full pages.
func (e *engine) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, flushMax)
	defer cancel()
	response, err := e.post(ctx, nil, "kvtier", "flush")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("store the pages of the text: %s", response.Status)
	}
	return nil
}

// answerBytesMax bounds an answer: log probabilities of topTokens tokens, with long texts.
const answerBytesMax = 64 << 20

func readAnswer(body io.Reader) (a answer, err error) {
	decoder := json.NewDecoder(io.LimitReader(body, answerBytesMax))
	for {
		var c completed
		if err := decoder.Decode(&c); err != nil {
			return a, fmt.Errorf("read the answer of the engine's runner, did it end?: %w", err)
		}
		a.logprobs = append(a.logprobs, c.Logprobs...)
		if c.Done {
			a.prompt = c.Prompt
			if c.Cached != nil {
				a.cached = *c.Cached
			}
			return a, nil
		}
	}
}
