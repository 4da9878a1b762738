package llamae2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// tree is the folder that scripts/build-llama-server fills.
func tree(t testing.TB) string {
	dir, err := llamatest.FindDir("../..")
	if err != nil {
		t.Skip(err)
	}
	return dir
}

// server is a running llama-server: the stock one, or ours before it.
type server struct {
	*llamatest.Server
	t   testing.TB
	log string // of the daemon
}

// startMax is the time in which a server must become ready.
const startMax = time.Minute

// start starts a server with two threads that restores all that is stored. It ends with the test.
func start(t testing.TB, o llamatest.Options) *server {
	if o.Dir == "" {
		o.Dir = tree(t)
	}
	if o.Root != "" && o.Log == "" {
		o.Log = o.Root + ".log"
	}
	o.Args = append([]string{"-t", "2"}, o.Args...)
	o.Env = append(o.Env, "OLLAMA_KV_TIER_TEST=1")
	t.Cleanup(func() {
		if t.Failed() {
			b, _ := os.ReadFile(o.Log)
			t.Logf("the daemon's log:\n%s", b)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), startMax)
	defer cancel()
	s, err := llamatest.Start(ctx, o)
	require.NoError(t, err)
	t.Cleanup(func() {
		s.Kill()
		if t.Failed() {
			t.Logf("the engine's output ends:\n%s", s.Output())
		}
	})
	return &server{Server: s, t: t, log: o.Log}
}

// answer is llama-server's answer to /completion.
type answer struct {
	Content string  `json:"content"`
	Tokens  []int32 `json:"tokens"`
	Stop    bool    `json:"stop"`
	Timings struct {
		Cached   int `json:"cache_n"`
		Computed int `json:"prompt_n"`
	} `json:"timings"`
	Probabilities []struct {
		ID      int32   `json:"id"`
		Logprob float64 `json:"logprob"`
	} `json:"completion_probabilities"`
}

// killed kills the server, and returns the daemon's log.
func (s *server) killed() string {
	s.Kill()
	log, err := os.ReadFile(s.log)
	require.NoError(s.t, err)
	return string(log)
}

// post sends a request and returns the status and the body.
func (s *server) post(path string, in any) (int, []byte) {
	s.t.Helper()
	status, out := s.tryPost(path, in)
	require.NotZero(s.t, status, string(out))
	return status, out
}

// tryPost sends a request and returns the status and the body; 0 and the error if there is no
// answer.
func (s *server) tryPost(path string, in any) (int, []byte) {
	body, err := json.Marshal(in)
	if err != nil {
		return 0, []byte(err.Error())
	}
	res, err := llamatest.Client.Post(s.URL+path, "application/json", bytes.NewReader(body))
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer res.Body.Close()
	out, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, []byte(err.Error())
	}
	return res.StatusCode, out
}

// read sends a request, and reads the answer.
func (s *server) read(path string, in, answer any) {
	s.t.Helper()
	status, body := s.post(path, in)
	require.Equal(s.t, http.StatusOK, status, string(body))
	require.NoError(s.t, json.Unmarshal(body, answer))
}

// get asks for a path and returns the status and the body.
func (s *server) get(path string) (int, string) {
	s.t.Helper()
	res, err := llamatest.Client.Get(s.URL + path)
	require.NoError(s.t, err)
	defer res.Body.Close()
	out, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	return res.StatusCode, string(out)
}

// complete asks for n tokens after a prompt.
func (s *server) complete(prompt any, n int) answer {
	s.t.Helper()
	return s.ask("/completion", map[string]any{"prompt": prompt, "n_predict": n})
}

// ask sends a request to /completion or /infill.
func (s *server) ask(path string, in map[string]any) (a answer) {
	s.t.Helper()
	maps.Copy(in, map[string]any{"temperature": 0, "seed": 1, "n_probs": 3, "return_tokens": true})
	s.read(path, in, &a)
	return a
}

// stream asks for n tokens after a prompt and returns the events as they came.
func (s *server) stream(prompt any, n int) []string {
	s.t.Helper()
	_, events := s.events("/completion", map[string]any{"prompt": prompt, "n_predict": n, "temperature": 0, "seed": 1, "stream": true})
	return events
}

// events sends a request, and returns the header of the answer and the lines of its stream.
func (s *server) events(path string, in any) (header http.Header, lines []string) {
	s.t.Helper()
	body, err := json.Marshal(in)
	require.NoError(s.t, err)
	res, err := llamatest.Client.Post(s.URL+path, "application/json", bytes.NewReader(body))
	require.NoError(s.t, err)
	defer res.Body.Close()
	require.Equal(s.t, http.StatusOK, res.StatusCode)
	scanner := bufio.NewScanner(res.Body)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		if scanner.Text() != "" {
			lines = append(lines, scanner.Text())
		}
	}
	require.NoError(s.t, scanner.Err())
	return res.Header, lines
}

// waitLog waits until daemons have written a text into their log some times.
func waitLog(t testing.TB, log, text string, times int) {
	t.Helper()
	require.Eventually(t, func() bool {
		all, err := os.ReadFile(log)
		return err == nil && bytes.Count(all, []byte(text)) >= times
	}, startMax, 5*time.Millisecond, text)
}

// chatting returns the options of a server with a model, whose template writes all that a chat can have.
func chatting(t testing.TB, shape testmodel.Shape) llamatest.Options {
	template := filepath.Join(t.TempDir(), "everything.jinja")
	require.NoError(t, os.WriteFile(template, []byte(everything), 0o600))
	return llamatest.Options{Model: aModel(t, shape), Args: []string{"-c", "8192", "-np", "1", "--jinja", "--chat-template-file", template}}
}

// requireSame requires the same tokens, with log probabilities at most bound apart.
func requireSame(t testing.TB, want, got answer, bound float64) {
	t.Helper()
	require.Equal(t, want.Tokens, got.Tokens)
	require.Len(t, got.Probabilities, len(want.Probabilities))
	for i, p := range want.Probabilities {
		require.LessOrEqual(t, math.Abs(p.Logprob-got.Probabilities[i].Logprob), bound, "token %d", i)
	}
}

// aModel writes a small model.
func aModel(t testing.TB, shape testmodel.Shape) string {
	shape.LlamaCpp = true
	path := filepath.Join(t.TempDir(), shape.Arch+".gguf")
	require.NoError(t, testmodel.Write(path, shape.WithDefaults()))
	return path
}

// someTokens is a prompt of n tokens of a conversation.
func someTokens(seed, n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(300 + (seed*7919+i*i*31)%1000)
	}
	return tokens
}

// pages counts the files of pages below a root.
func pages(t testing.TB, root string) int {
	n := 0
	eachPage(t, root, func(string) error { n++; return nil })
	return n
}

// eachPage calls do with the path of each page below a root. A daemon that ends removes its
// folder of slots' files, which is below the root, too.
func eachPage(t testing.TB, root string, do func(path string) error) {
	require.NoError(t, filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil || !strings.HasSuffix(path, ".kvp"):
			return err
		}
		return do(path)
	}))
}
