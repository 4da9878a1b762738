package llamae2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/testmodel"
)

// tree is the folder that scripts/build-llama-server fills.
func tree(t testing.TB) string {
	dir := os.Getenv("KVTIER_LLAMA_DIR")
	if dir == "" {
		dir = "../../build/llama"
	}
	dir, err := filepath.Abs(dir)
	require.NoError(t, err)
	if _, err := os.Stat(filepath.Join(dir, "lib", "ollama", "llama-server-real")); err != nil {
		t.Skipf("%v: build it with scripts/build-llama-server, or name its folder in KVTIER_LLAMA_DIR", err)
	}
	return dir
}

// server is a running llama-server: the stock one, or ours before it.
type server struct {
	t      testing.TB
	cmd    *exec.Cmd
	url    string
	log    string // of the daemon
	logged int    // bytes in the log before
	read   *os.File
	over   chan struct{} // closed when nobody can write to the output any more
}

// options say how to start a server.
type options struct {
	model string
	root  string   // of the pages; "" starts the stock server
	args  []string // more of them
}

// client takes a new connection for each request: llama-server closes idle ones.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// freePort returns a port that nobody listens on.
func freePort(t testing.TB) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func start(t testing.TB, o options) *server {
	lib := filepath.Join(tree(t), "lib", "ollama")
	name, log := "llama-server-real", ""
	if o.root != "" {
		name, log = "llama-server", o.root+".log"
	}
	port := freePort(t)
	s := &server{t: t, url: fmt.Sprintf("http://127.0.0.1:%d", port), log: log, over: make(chan struct{})}
	before, _ := os.ReadFile(log)
	s.logged = len(before)
	s.cmd = exec.Command(filepath.Join(lib, name), append([]string{
		"--model", o.model, "--port", strconv.Itoa(port), "--host", "127.0.0.1", "--no-webui", "--offline", "-t", "2",
	}, o.args...)...)
	s.cmd.Env = append(os.Environ(), "OLLAMA_KV_TIERING=1", "OLLAMA_KV_TIER_LOCAL="+o.root, "KVTIER_LLAMA_LOG="+log, "OLLAMA_KV_TIER_TEST=1")
	read, write, err := os.Pipe()
	require.NoError(t, err)
	s.read = read
	s.cmd.Stdout, s.cmd.Stderr = write, write
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, s.cmd.Start())
	write.Close()
	var output bytes.Buffer
	go func() {
		defer close(s.over)
		_, _ = io.Copy(&output, read)
	}()
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			b, _ := os.ReadFile(log)
			t.Logf("the daemon's log:\n%s\nthe engine's output ends:\n%s", b, output.Bytes()[max(0, output.Len()-3000):])
		}
	})
	s.ready()
	return s
}

// ready waits until the server answers prompts.
func (s *server) ready() {
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		res, err := http.Get(s.url + "/health")
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK && s.settled() {
				return
			}
		}
		select {
		case <-s.over:
			require.Fail(s.t, "the server has ended")
		case <-time.After(5 * time.Millisecond):
		}
	}
	require.Fail(s.t, "the server does not become ready")
}

// settled reports whether the store is open, or will not be: a busy machine may take longer than
// the daemon waits for it.
func (s *server) settled() bool {
	if s.log == "" {
		return true
	}
	b, _ := os.ReadFile(s.log)
	b = b[min(s.logged, len(b)):]
	return bytes.Contains(b, []byte("kv tier: on")) || bytes.Contains(b, []byte("kv tier: off"))
}

// kill kills the process that Ollama would kill, and waits as Ollama does: until nobody can
// write to the output any more.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	<-s.over
	_ = s.cmd.Wait()
	s.read.Close()
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

// post sends a request and returns the status and the body.
func (s *server) post(path string, in any) (int, []byte) {
	s.t.Helper()
	body, err := json.Marshal(in)
	require.NoError(s.t, err)
	res, err := client.Post(s.url+path, "application/json", bytes.NewReader(body))
	require.NoError(s.t, err)
	defer res.Body.Close()
	out, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	return res.StatusCode, out
}

// get asks for a path and returns the status and the body.
func (s *server) get(path string) (int, string) {
	s.t.Helper()
	res, err := client.Get(s.url + path)
	require.NoError(s.t, err)
	defer res.Body.Close()
	out, err := io.ReadAll(res.Body)
	require.NoError(s.t, err)
	return res.StatusCode, string(out)
}

// complete asks for n tokens after a prompt.
func (s *server) complete(prompt any, n int) answer {
	s.t.Helper()
	return s.ask(map[string]any{"prompt": prompt, "n_predict": n})
}

// ask sends a request to /completion.
func (s *server) ask(in map[string]any) answer {
	s.t.Helper()
	maps.Copy(in, map[string]any{"temperature": 0, "seed": 1, "n_probs": 3, "return_tokens": true})
	status, body := s.post("/completion", in)
	require.Equal(s.t, http.StatusOK, status, string(body))
	var a answer
	require.NoError(s.t, json.Unmarshal(body, &a))
	return a
}

// stream asks for n tokens after a prompt and returns the events as they came.
func (s *server) stream(prompt any, n int) []string {
	s.t.Helper()
	body, err := json.Marshal(map[string]any{"prompt": prompt, "n_predict": n, "temperature": 0, "seed": 1, "stream": true})
	require.NoError(s.t, err)
	res, err := client.Post(s.url+"/completion", "application/json", bytes.NewReader(body))
	require.NoError(s.t, err)
	defer res.Body.Close()
	var events []string
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if lines.Text() != "" {
			events = append(events, lines.Text())
		}
	}
	return events
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
	require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if strings.HasSuffix(path, ".kvp") {
			n++
		}
		return err
	}))
	return n
}
