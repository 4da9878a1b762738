package torture

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/ollama/ollama/api"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// llama is a stock llama-server behind ours; the oracle is the stock one alone.
var llama = subject{
	name:       "llama-server",
	start:      startLlama,
	dense:      testmodel.Shape{Arch: "llama", Layers: 2, Embed: 64, Heads: 2, KVHeads: 1, HeadDim: 32, Seed: 1, LlamaCpp: true},
	windowed:   testmodel.Shape{Arch: "gemma3", Window: 128, LlamaCpp: true},
	hybrid:     testmodel.Shape{Arch: "lfm2", LlamaCpp: true},
	adapters:   true,
	valueTypes: true,

	windowBound: 0.05,
	hybridBound: 0.005, // on some processors sums depend on the size of a batch
}

// llamaServer is a llama-server; a new one after each end.
type llamaServer struct {
	*llamatest.Server
	options llamatest.Options
}

func startLlama(t testing.TB, s setup) server {
	dir, err := llamatest.FindDir("../..")
	if err != nil {
		t.Skip(err)
	}
	o := llamatest.Options{Dir: dir, Model: s.gguf, Root: s.root, Args: llamaArgs(s)}
	if s.root != "" {
		o.Log = s.root + ".log"
		// Faults are made while a server runs, which would have restored the latest chat at its start.
		o.Env = append([]string{"OLLAMA_KV_TIER_TEST=1", "OLLAMA_KV_TIER_WARM_GB=0", fmt.Sprint("OLLAMA_KV_TIER_PAGE_TOKENS=", pageTokens)}, s.env...)
	}
	l := &llamaServer{options: o}
	require.NoError(t, l.start())
	t.Cleanup(func() {
		l.Kill()
		if t.Failed() {
			log, _ := os.ReadFile(o.Log)
			t.Logf("the daemon's log ends:\n%s\nthe engine's output ends:\n%s", log[max(0, len(log)-1<<14):], l.Output())
		}
	})
	return l
}

// llamaArgs are the arguments of a setup. Batches of a page make the rounding of a row the same
// wherever a restored prompt begins.
func llamaArgs(s setup) []string {
	slots := max(1, s.slots)
	args := fmt.Sprintf("-t 1 -tb 1 -b %d -ub %d -np %d -c %d --no-context-shift", pageTokens, pageTokens, slots, slots*context4k)
	if s.keys != "" {
		values := s.values
		if values == "" {
			values = s.keys
		}
		args += fmt.Sprintf(" -ctk %s -ctv %s", s.keys, values)
	}
	if s.plain {
		args += " -fa off"
	}
	if s.root == "" {
		args += " --cache-ram 0" // which restores prompts, too; ours sets it
	}
	list := strings.Fields(args)
	if s.adapter != "" {
		list = append(list, "--lora", s.adapter)
	}
	return list
}

func (l *llamaServer) start() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), startMax)
	defer cancel()
	l.Server, err = llamatest.Start(ctx, l.options)
	return err
}

func (l *llamaServer) ask(ctx context.Context, p prompt, tokens int) (a answer, err error) {
	body, err := l.Post(ctx, "/completion", map[string]any{
		"prompt": p.tokens, "n_predict": tokens, "temperature": 0, "seed": 1, "n_probs": shownBest, "return_tokens": true, "ignore_eos": true,
	})
	if err != nil {
		return a, err
	}
	defer body.Close()
	var in struct {
		Content string
		Tokens  []int32
		Timings struct {
			Cached int `json:"cache_n"`
		}
		Probabilities []struct {
			Token   string
			Logprob float64
			Top     []api.TokenLogprob `json:"top_logprobs"`
		} `json:"completion_probabilities"`
	}
	if err := json.NewDecoder(body).Decode(&in); err != nil {
		return a, err
	}
	a = answer{text: in.Content, tokens: in.Tokens, restored: in.Timings.Cached}
	for _, p := range in.Probabilities {
		a.logprobs = append(a.logprobs, api.Logprob{TokenLogprob: api.TokenLogprob{Token: p.Token, Logprob: p.Logprob}, TopLogprobs: p.Top})
	}
	return a, nil
}

func (l *llamaServer) unload() error {
	l.Kill()
	return l.start()
}

func (l *llamaServer) crash() error {
	pids, err := l.Processes()
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL) // it may have ended with another
	}
	l.Wait()
	return errors.Join(err, l.start())
}

func (l *llamaServer) close() error {
	l.Kill()
	return nil
}

func (l *llamaServer) refused() int {
	log, _ := os.ReadFile(l.options.Log) // a log that is full begins anew
	return bytes.Count(log, []byte(refusedLine)) + bytes.Count(log, []byte(brokenLine))
}
