package torture

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// ollama is the patched Ollama; the oracle is the same program with tiering off.
var ollama = subject{
	name:     "Ollama",
	start:    startOllama,
	dense:    testmodel.Shape{Arch: "qwen3", Layers: 2, Embed: 64, Heads: 2, KVHeads: 1, HeadDim: 32, Seed: 1},
	windowed: testmodel.Shape{Arch: "gemma3", Window: 128},
	hybrid:   testmodel.Shape{Arch: "lfm2"},

	windowBound: 0.05,
	hybridBound: 0.05,
}

const modelName = "tortured"

// ollamaServer is a patched Ollama with one model.
type ollamaServer struct {
	*ollamatest.Server
	tiered bool
}

func startOllama(t testing.TB, s setup) server {
	o := ollamatest.Options{Env: append([]string{fmt.Sprint("OLLAMA_NUM_PARALLEL=", max(1, s.slots))}, s.env...)}
	if s.root != "" {
		o.Env = append(o.Env, "OLLAMA_KV_TIERING=1", "OLLAMA_KV_TIER_LOCAL="+s.root, "OLLAMA_KV_TIER_TEST=1",
			fmt.Sprint("OLLAMA_KV_TIER_PAGE_TOKENS=", pageTokens))
	}
	switch {
	case s.keys != "":
		o.Env = append(o.Env, "OLLAMA_KV_CACHE_TYPE="+s.keys, "OLLAMA_FLASH_ATTENTION=1")
	case s.plain:
		o.Env = append(o.Env, "OLLAMA_FLASH_ATTENTION=0")
	}
	l := &ollamaServer{ollamatest.ForTest(t, o), s.root != ""}
	ctx, cancel := context.WithTimeout(context.Background(), startMax)
	defer cancel()
	require.NoError(t, l.CreateModel(ctx, modelName, s.gguf, testmodel.Modelfile(s.gguf)))
	return l
}

var restoredLine = regexp.MustCompile(`msg="kv tier: restored" slot=\d+ tokens=(\d+)`)

func (l *ollamaServer) ask(ctx context.Context, p prompt, tokens int) (answer, error) {
	options := ollamatest.Greedy(tokens, context4k)
	options["num_thread"], options["num_batch"] = 1, pageTokens
	mark := l.LogMark()
	got, err := l.Generate(ctx, ollamatest.Request{
		Model: modelName, Prompt: p.text, Raw: true, Options: options,
		Logprobs: true, TopLogprobs: shownBest, KeepAlive: ollamatest.KeepAlive(10 * time.Minute),
	})
	a := answer{text: got.Text, logprobs: got.Logprobs}
	if err != nil || !l.tiered {
		return a, err
	}
	l.settle(ctx)
	for _, line := range restoredLine.FindAllStringSubmatch(l.Logs()[mark:], -1) {
		n, _ := strconv.Atoi(line[1]) // of digits
		a.restored += n
	}
	return a, err
}

// settle waits for the lines that the runner wrote during a request: the server passes them on
// while it answers other requests.
func (l *ollamaServer) settle(ctx context.Context) {
	for range 2 {
		mark := l.LogMark()
		if l.API().Heartbeat(ctx) != nil || l.WaitLogFrom(ctx, mark, "| HEAD ") != nil {
			return // the server has ended
		}
	}
}

func (l *ollamaServer) unload() error {
	ctx, cancel := context.WithTimeout(context.Background(), startMax)
	defer cancel()
	return l.Unload(ctx, modelName)
}

func (l *ollamaServer) crash() error {
	ctx, cancel := context.WithTimeout(context.Background(), startMax)
	defer cancel()
	if err := l.flush(ctx); err != nil {
		return err
	}
	if err := l.KillServer(); err != nil {
		return err
	}
	return l.Restart(ctx)
}

// flush waits until the runner has stored its pages. A runner that has ended stored them then.
func (l *ollamaServer) flush(ctx context.Context) error {
	runner, err := l.RunnerURL()
	if err != nil {
		return nil // none was started
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, runner.JoinPath("kvtier", "flush").String(), nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil // it has ended
	}
	return response.Body.Close()
}

func (l *ollamaServer) refused() int { return strings.Count(l.Logs(), refusedLine) }

func (l *ollamaServer) close() error { return l.Stop() }
