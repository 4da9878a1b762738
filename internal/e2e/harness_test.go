package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// One small model for all tests: large enough that a wrong row changes the output.
var shape = testmodel.Shape{Arch: "qwen3", Layers: 3, Embed: 256, Heads: 4, KVHeads: 2, HeadDim: 64, Seed: 1}.WithDefaults()

// model is named after the process: tests of other processes list the memory of all models.
var model = fmt.Sprintf("tiny%d", os.Getpid())

const (
	pageTokens = 256
	numCtx     = 2048
	timeout    = 2 * time.Minute
)

// shared holds the model files and the blobs that all servers use.
var shared struct{ dir, models, gguf string }

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if _, err := ollamatest.FindBinary(); err != nil {
		return m.Run() // every test gives the reason for its skip
	}
	dir, err := os.MkdirTemp("", "kvtier-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	shared.dir, shared.models, shared.gguf = dir, filepath.Join(dir, "models"), filepath.Join(dir, "tiny.gguf")
	if err := testmodel.Write(shared.gguf, shape); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// server is a running Ollama with tiering into root.
type server struct {
	*ollamatest.Server
	t    *testing.T
	root string
}

// start starts a server with tiering on, which poisons cells before a restore.
func start(t *testing.T, env ...string) *server {
	t.Helper()
	root := filepath.Join(t.TempDir(), "pages")
	return startIn(t, root, env...)
}

func startIn(t *testing.T, root string, env ...string) *server {
	t.Helper()
	return startOptions(t, root, ollamatest.Options{Env: append([]string{
		"OLLAMA_KV_TIERING=1",
		"OLLAMA_KV_TIER_LOCAL=" + root,
		"OLLAMA_KV_TIER_TEST=1",
		"OLLAMA_NUM_PARALLEL=1",
	}, env...)})
}

func startOptions(t *testing.T, root string, options ollamatest.Options) *server {
	t.Helper()
	options.ModelsDir = shared.models
	s := &server{Server: ollamatest.ForTest(t, options), t: t, root: root}
	s.create(model, shared.gguf)
	return s
}

// startPlain starts a server without tiering.
func startPlain(t *testing.T, env ...string) *server {
	t.Helper()
	return startOptions(t, "", ollamatest.Options{Env: env})
}

func (s *server) create(name, gguf string) {
	s.t.Helper()
	require.NoError(s.t, s.CreateModel(s.context(), name, gguf, testmodel.Modelfile(gguf)))
}

// settleMax bounds the wait of Logs for the server's own line about a request.
const settleMax = 10 * time.Second

// Logs is all output of the server and its runners. A line that a runner wrote during a request
// passes through the server, and may come after the answer. So Logs first sends requests of its
// own: the server passes lines on while it answers these.
func (s *server) Logs() string {
	ctx, cancel := context.WithTimeout(s.context(), settleMax)
	defer cancel()
	for range 2 {
		mark := s.LogMark()
		if s.API().Heartbeat(ctx) != nil || s.WaitLogFrom(ctx, mark, "| HEAD ") != nil {
			break // the server has ended
		}
	}
	return s.Server.Logs()
}

func (s *server) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	s.t.Cleanup(cancel)
	return ctx
}

// answer is the answer to a request, and the tokens restored for the request.
type answer struct {
	ollamatest.Result
	restored int
}

var restoredLine = regexp.MustCompile(`msg="kv tier: restored" slot=\d+ tokens=(\d+)`)

// requestFor is a raw prompt for a greedy answer with its log probabilities.
func requestFor(prompt string, tokens int, change ...func(*ollamatest.Request)) ollamatest.Request {
	request := ollamatest.Request{
		Model: model, Prompt: prompt, Raw: true,
		Options:     oneThread(ollamatest.Greedy(tokens, numCtx)),
		Logprobs:    true,
		TopLogprobs: 5,
		KeepAlive:   ollamatest.KeepAlive(10 * time.Minute),
	}
	for _, f := range change {
		f(&request)
	}
	return request
}

// requestsFor are requests for answers of the same length.
func requestsFor(prompts []string, tokens int, change ...func(*ollamatest.Request)) (requests []ollamatest.Request) {
	for _, prompt := range prompts {
		requests = append(requests, requestFor(prompt, tokens, change...))
	}
	return requests
}

// private keeps a request out of the store.
func private(r *ollamatest.Request) { r.Options["kv_store"] = false }

// askTogether makes requests at the same time.
func (s *server) askTogether(requests ...ollamatest.Request) []answer {
	s.t.Helper()
	answers := make([]answer, len(requests))
	require.NoError(s.t, forAll(len(requests), func(i int) (err error) {
		answers[i].Result, err = s.Generate(s.context(), requests[i])
		return err
	}))
	return answers
}

// ask asks with requestFor.
func (s *server) ask(prompt string, tokens int, change ...func(*ollamatest.Request)) answer {
	s.t.Helper()
	mark := s.LogMark()
	result, err := s.Generate(s.context(), requestFor(prompt, tokens, change...))
	require.NoError(s.t, err)
	a := answer{Result: result}
	for _, line := range restoredLine.FindAllStringSubmatch(s.Logs()[mark:], -1) {
		n, _ := strconv.Atoi(line[1])
		a.restored += n
	}
	return a
}

// oneThread limits the engine to one thread. Several threads wait for each other by
// spinning, which is far slower than one thread on a busy machine.
func oneThread(options map[string]any) map[string]any {
	options["num_thread"] = 1
	return options
}

// prompt is a text of exactly n tokens.
func prompt(t *testing.T, n int, seed int64) string {
	t.Helper()
	text, err := testmodel.Prompt(shape, n, seed)
	require.NoError(t, err)
	return text
}

// requireSame checks that two answers are the same to the last bit.
func requireSame(t *testing.T, want, got answer, what string) {
	t.Helper()
	require.NotEmpty(t, want.Logprobs)
	for i, w := range want.Logprobs {
		require.Greater(t, len(got.Logprobs), i, "%s: the answer is shorter", what)
		require.Equal(t, w, got.Logprobs[i], "%s: token %d of %d", what, i, len(want.Logprobs))
	}
	require.Equal(t, want.Text, got.Text, what)
}

// requireRestored asks for 40 tokens after a text of n tokens, of which all but the last are restored. The
// answer is that of rows which were never evicted, to the last bit.
func (s *server) requireRestored(text string, n int, held answer, when string) {
	s.t.Helper()
	got := s.ask(text, 40)
	require.Equal(s.t, n-1, got.restored, when)
	requireSame(s.t, held, got, when)
}

// requireClose checks that the log probabilities of two answers differ by rounding only, up
// to the first different token, whose two best alternatives must be nearly equal.
func requireClose(t *testing.T, want, got answer, delta float64) {
	t.Helper()
	require.NotEmpty(t, want.Logprobs)
	require.Len(t, got.Logprobs, len(want.Logprobs))
	for i, w := range want.Logprobs {
		g := got.Logprobs[i]
		require.InDelta(t, w.Logprob, g.Logprob, delta, "token %d", i)
		if w.Token != g.Token {
			require.InDelta(t, w.TopLogprobs[0].Logprob, w.TopLogprobs[1].Logprob, delta, "token %d differs and was no close call", i)
			return
		}
	}
}

// unload ends the runner as keep_alive does.
func (s *server) unload() {
	s.t.Helper()
	require.NoError(s.t, s.Unload(s.context(), model))
}

// crash kills server and runner with SIGKILL, once all prompts so far are stored, and starts
// the server again.
func (s *server) crash() {
	s.t.Helper()
	s.flush()
	require.NoError(s.t, s.KillServer())
	require.NoError(s.t, s.Restart(s.context()))
}

// flush waits until the last started runner has stored its sealed pages. A runner that has
// ended stored them when it was unloaded.
func (s *server) flush() {
	s.t.Helper()
	runner, err := s.RunnerURL()
	require.NoError(s.t, err)
	if status, _, err := s.post(runner.JoinPath("kvtier", "flush"), ""); err == nil {
		require.Equal(s.t, http.StatusOK, status)
	}
}

// post sends JSON, and returns the status and the whole body of the response.
func (s *server) post(to *url.URL, body string) (status int, answer string, err error) {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.context(), http.MethodPost, to.String(), strings.NewReader(body))
	require.NoError(s.t, err)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// pages lists the page files, tails included.
func (s *server) pages() []string {
	s.t.Helper()
	return files(s.t, filepath.Join(s.root, "v1"), ".kvp")
}

// fullPages lists the page files that are no tails.
func (s *server) fullPages() []string {
	return slices.DeleteFunc(s.pages(), func(path string) bool {
		return strings.Contains(path, string(filepath.Separator)+"tails"+string(filepath.Separator))
	})
}

func files(t *testing.T, root, ext string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if entry.Type().IsRegular() && filepath.Ext(path) == ext {
			found = append(found, path)
		}
		return nil
	})
	require.NoError(t, err)
	return found
}
