package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"strconv"
	"time"

	"github.com/kvtier/kvtier/internal/ollamatest"
)

// Options name the model to serve and the server's settings.
type Options struct {
	Binary  string // ollama executable; ollamatest.FindBinary's if empty
	Model   Model
	Root    string   // directory of pages, OLLAMA_KV_TIER_LOCAL; tiering is off if empty
	NumCtx  int      // context length of every request
	Threads int      // compute threads, num_thread; 0: Ollama's choice
	Env     []string // more variables, KEY=value
	Log     io.Writer
}

// Lab is a server that Start started.
type Lab struct {
	*ollamatest.Server
	options Options
}

// Start starts a server and creates the model on it.
func Start(ctx context.Context, options Options) (*Lab, error) {
	env := []string{
		"OLLAMA_NUM_PARALLEL=1", "OLLAMA_MAX_LOADED_MODELS=1", "OLLAMA_NOPRUNE=1",
		"OLLAMA_NEW_ENGINE=1", // the engine with a tier, for every model that the engine knows
	}
	if options.Root != "" {
		env = append(env, "OLLAMA_KV_TIERING=1", "OLLAMA_KV_TIER_LOCAL="+options.Root)
	}
	server, err := ollamatest.Start(ctx, ollamatest.Options{
		Binary:    options.Binary,
		ModelsDir: options.Model.Models,
		Env:       append(env, options.Env...),
		Stderr:    options.Log,
	})
	if err != nil {
		return nil, err
	}
	if err := options.Model.create(ctx, server); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	return &Lab{Server: server, options: options}, nil
}

// Question is a prompt with the wanted kind of answer.
type Question struct {
	Prompt   string
	Tokens   int  // most tokens of the answer
	Raw      bool // send the prompt as it is, without the model's template
	Logprobs bool // ask for log probabilities, at full precision
	Top      int  // number of alternatives per token; 2 if 0
	Keep     int  // tokens of the prompt that a shift of the context keeps, num_keep; Ollama's if 0
	Private  bool // store nothing of the request
	Drawn    bool // draw tokens, with a fixed seed, instead of taking the most likely
}

// Answer is the answer to a question, with its times.
type Answer struct {
	ollamatest.Result
	Restored Restored
}

// Wait is the time to first token by the client's clock, less the loading of
// the model.
func (a Answer) Wait() time.Duration { return a.TTFTMinusLoad() }

// topLogprobs is the default number of alternatives: enough to see how close the second best
// token was.
const topLogprobs = 2

// Ask sends a question and reads a greedy answer.
func (l *Lab) Ask(ctx context.Context, q Question) (Answer, error) {
	request := ollamatest.Request{
		Model:  l.options.Model.Name,
		Prompt: q.Prompt,
		Raw:    q.Raw,
		// The model stays until it is unloaded or killed.
		KeepAlive: ollamatest.KeepAlive(time.Duration(math.MaxInt64)),
		Options:   ollamatest.Greedy(q.Tokens, l.options.NumCtx),
	}
	if q.Drawn {
		request.Options["temperature"], request.Options["top_k"] = 1, 4 // with the seed of Greedy
	}
	if q.Logprobs {
		request.Logprobs, request.TopLogprobs = true, cmp.Or(q.Top, topLogprobs)
	}
	if q.Keep != 0 {
		request.Options["num_keep"] = q.Keep
	}
	if q.Private && l.options.Root != "" {
		request.Options["kv_store"] = false
	}
	if l.options.Threads != 0 {
		request.Options["num_thread"] = l.options.Threads
	}
	mark := l.LogMark()
	result, err := l.Generate(ctx, request)
	if err != nil {
		return Answer{Result: result}, err
	}
	// The runner logs a restore before the first token, and the server logs the
	// request after the last; both go through the same pipe.
	if err := l.WaitLogFrom(ctx, mark, `"/api/generate"`); err != nil {
		return Answer{Result: result}, err
	}
	restored, err := parseRestored(l.Logs()[mark:])
	if err != nil {
		return Answer{Result: result}, err
	}
	return Answer{Result: result, Restored: restored}, nil
}

// Restored is the runner's log line about restoring a prompt's K/V, zero when
// nothing was restored.
type Restored struct {
	Tokens  int           // restored into the slot
	Shifted int           // the part of Tokens from another position
	Took    time.Duration // from the lookup to the last row
}

// restoredLine is: msg="kv tier: restored" slot=0 tokens=7936 shifted=0 prompt=8003
// bytes="65 MB" from=local took=43ms
var restoredLine = regexp.MustCompile(
	`msg="kv tier: restored" slot=\d+ tokens=(\d+) shifted=(\d+) prompt=\d+ bytes="?[^"=]*"? from=\S+ took=(\S+)`)

// parseRestored reads the line in the log of one request.
func parseRestored(log string) (Restored, error) {
	match := restoredLine.FindStringSubmatch(log)
	if match == nil {
		return Restored{}, nil
	}
	tokens, tokensErr := strconv.Atoi(match[1])
	shifted, shiftedErr := strconv.Atoi(match[2])
	took, tookErr := time.ParseDuration(match[3])
	if tokensErr != nil || shiftedErr != nil || tookErr != nil {
		return Restored{}, fmt.Errorf("reading the runner's log: %q has a number that is none", match[0])
	}
	return Restored{Tokens: tokens, Shifted: shifted, Took: took}, nil
}

// Model is the model of the server.
func (l *Lab) Model() Model { return l.options.Model }

// tierOff matches the runner's log line about a model without the tier.
var tierOff = regexp.MustCompile(`msg="kv tier: off for this model".* reason=("(?:[^"\\]|\\.)*"|\S+)`)

// TierOff is the logged reason why a loaded model runs without the tier, or empty.
func (l *Lab) TierOff() string { return parseTierOff(l.Logs()) }

func parseTierOff(log string) string {
	match := tierOff.FindStringSubmatch(log)
	if match == nil {
		return ""
	}
	if reason, err := strconv.Unquote(match[1]); err == nil {
		return reason
	}
	return match[1]
}

// Model is a model that a lab can serve.
type Model struct {
	Name      string
	GGUF      string // the model's file; empty when Models has the model
	Modelfile string // settings beside the file's own; may be empty
	Models    string // OLLAMA_MODELS, which has the model or gets it
}

// create creates the model on a server that does not have it.
func (m Model) create(ctx context.Context, s *ollamatest.Server) error {
	if m.GGUF == "" {
		return nil
	}
	if _, err := os.Stat(m.GGUF); err != nil {
		return fmt.Errorf("opening the model file: %w", err)
	}
	return s.CreateModel(ctx, m.Name, m.GGUF, m.Modelfile)
}
