package llamae2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/proc"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// ollama is a stock Ollama with our llama-server before the stock one.
type ollama struct {
	*ollamatest.Server
	t    *testing.T
	root string // of the pages
	log  string // of the daemons
}

// startOllama starts a server with a model of an architecture for each of some names.
func startOllama(t *testing.T, arch string, models ...string) *ollama {
	root := filepath.Join(t.TempDir(), "pages")
	o := &ollama{t: t, root: root, log: root + ".log"}
	t.Cleanup(func() {
		if t.Failed() {
			b, _ := os.ReadFile(o.log)
			t.Logf("the daemons' log:\n%s", b)
		}
	})
	o.start(arch, models, "OLLAMA_KV_TIERING=1", "OLLAMA_KV_TIER_LOCAL="+root, "KVTIER_LLAMA_LOG="+o.log, "OLLAMA_KV_TIER_TEST=1")
	return o
}

// start starts the server.
func (o *ollama) start(arch string, models []string, env ...string) {
	o.t.Setenv(ollamatest.BinaryEnv, filepath.Join(tree(o.t), "bin", "ollama"))
	env = append(env, "OLLAMA_NUM_PARALLEL=1", "OLLAMA_MAX_LOADED_MODELS=2")
	o.Server = ollamatest.ForTest(o.t, ollamatest.Options{Env: env})
	for i, name := range models {
		path := aModel(o.t, testmodel.Shape{Arch: arch, Seed: int64(i)})
		require.NoError(o.t, o.CreateModel(o.t.Context(), name, path, chatFile(path)))
	}
}

// chatFile is a Modelfile whose template has tools.
func chatFile(gguf string) string {
	return strings.Replace(testmodel.Modelfile(gguf), `TEMPLATE """`, `TEMPLATE """{{ if .Tools }}<|im_start|>system
{{ .Tools }}<|im_end|>
{{ end }}`, 1)
}

// restored matches a line of the daemons' log.
var restored = regexp.MustCompile(`msg="kv tier: restored" .*\btokens=([0-9]+)`)

// mark is the present end of the daemons' log.
func (o *ollama) mark() int64 {
	info, err := os.Stat(o.log)
	if os.IsNotExist(err) {
		return 0
	}
	require.NoError(o.t, err)
	return info.Size()
}

// restored adds up the tokens that were restored since a mark.
func (o *ollama) restored(mark int64) (tokens int) {
	b, err := os.ReadFile(o.log)
	require.NoError(o.t, err)
	for _, m := range restored.FindAllSubmatch(b[mark:], -1) {
		n, err := strconv.Atoi(string(m[1]))
		require.NoError(o.t, err)
		tokens += n
	}
	return tokens
}

// generate asks for the text after a prompt.
func (o *ollama) generate(model, prompt string) ollamatest.Result {
	o.t.Helper()
	r, err := o.Generate(o.t.Context(), ollamatest.Request{Model: model, Prompt: prompt, Raw: true, Logprobs: true, Options: ollamatest.Greedy(20, 4096)})
	require.NoError(o.t, err)
	require.NotEmpty(o.t, r.Logprobs)
	return r
}

// requireFirstOf requires about the same first token: the number of tokens that are computed at
// once changes the rounding.
func requireFirstOf(t *testing.T, want, got ollamatest.Result) {
	t.Helper()
	require.Equal(t, want.Logprobs[0].Token, got.Logprobs[0].Token)
	require.InDelta(t, want.Logprobs[0].Logprob, got.Logprobs[0].Logprob, 0.05)
}

// send sends a request to an API and returns the status and the body.
func (o *ollama) send(path string, in map[string]any) (int, []byte) {
	o.t.Helper()
	body, err := json.Marshal(in)
	require.NoError(o.t, err)
	res, err := http.Post(o.URL().String()+path, "application/json", bytes.NewReader(body))
	require.NoError(o.t, err)
	defer res.Body.Close()
	out, err := io.ReadAll(res.Body)
	require.NoError(o.t, err)
	return res.StatusCode, out
}

// post sends a request to an API and returns the answer without its figures.
func (o *ollama) post(path string, in map[string]any) string {
	o.t.Helper()
	status, out := o.send(path, in)
	require.Equal(o.t, http.StatusOK, status, string(out))
	var answer strings.Builder
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		line := strings.TrimPrefix(lines.Text(), "data: ")
		if line == "" || line == "[DONE]" {
			continue
		}
		var part any
		require.NoError(o.t, json.Unmarshal([]byte(line), &part), line)
		fmt.Fprintln(&answer, spoken(part))
	}
	return answer.String()
}

// spoken lists the parts of an answer that the model has said.
func spoken(part any) (all []string) {
	switch part := part.(type) {
	case []any:
		for _, p := range part {
			all = append(all, spoken(p)...)
		}
	case map[string]any:
		for _, name := range []string{"response", "content", "thinking", "reasoning", "tool_calls", "done_reason", "finish_reason"} {
			if value, ok := part[name]; ok {
				all = append(all, fmt.Sprintf("%s: %v", name, value))
			}
		}
		for _, name := range []string{"message", "choices", "delta"} {
			all = append(all, spoken(part[name])...)
		}
	}
	return all
}

// asked is the turn of a user, with the opening of the answer, as the template writes them.
func asked(question string) string {
	return testmodel.ImStart + "user\n" + question + testmodel.ImEnd + "\n" + testmodel.ImStart + "assistant\n"
}

// story is a text of more than a thousand tokens that begins unlike the others.
func story(n int) string {
	return fmt.Sprintf("Story %d. ", n) + strings.Repeat("The quick brown fox jumps over the lazy dog. ", 120)
}

// TestOllamaAPIs: with each API of Ollama, a conversation comes back after everything was killed,
// and goes on as it did before.
func TestOllamaAPIs(t *testing.T) {
	o := startOllama(t, "qwen3", "m")
	tools := []any{map[string]any{"type": "function", "function": map[string]any{
		"name": "weather", "description": "Tells the weather of a town.",
		"parameters": map[string]any{"type": "object", "properties": map[string]any{"town": map[string]any{"type": "string"}}},
	}}}
	options := ollamatest.Greedy(20, 4096)
	chat := func(n int, more map[string]any) map[string]any {
		in := map[string]any{"model": "m", "messages": []any{map[string]any{"role": "user", "content": story(n)}}}
		maps.Copy(in, more)
		return in
	}
	type request struct {
		path string
		in   map[string]any
	}
	requests := map[string]request{
		"generate":          {"/api/generate", map[string]any{"model": "m", "prompt": story(0), "options": options}},
		"generate at once":  {"/api/generate", map[string]any{"model": "m", "prompt": story(1), "options": options, "stream": false}},
		"chat":              {"/api/chat", chat(2, map[string]any{"options": options})},
		"chat at once":      {"/api/chat", chat(3, map[string]any{"options": options, "stream": false})},
		"tools":             {"/api/chat", chat(4, map[string]any{"options": options, "tools": tools})},
		"completion":        {"/v1/chat/completions", chat(5, map[string]any{"temperature": 0, "seed": 1, "max_tokens": 20})},
		"completion stream": {"/v1/chat/completions", chat(6, map[string]any{"temperature": 0, "seed": 1, "max_tokens": 20, "stream": true})},
		"completion tools":  {"/v1/chat/completions", chat(7, map[string]any{"temperature": 0, "seed": 1, "max_tokens": 20, "tools": tools})},
	}
	want := make(map[string]string)
	for name, r := range requests {
		require.NotEmpty(t, o.post(r.path, r.in))
		want[name] = o.post(r.path, r.in) // computes as many tokens at once as after a restore
	}
	require.NoError(t, o.Unload(t.Context(), "m")) // the last one is stored now
	for name, r := range requests {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, o.KillServer())
			require.NoError(t, o.Restart(t.Context()))
			mark := o.mark()
			require.Equal(t, want[name], o.post(r.path, r.in))
			require.Greater(t, o.restored(mark), 500)
		})
	}
}

// TestOllamaEnds: a conversation goes on as under an Ollama without us that never ended, however
// the model or Ollama ended.
func TestOllamaEnds(t *testing.T) {
	for _, arch := range []string{"qwen3", "gemma3", "lfm2"} {
		t.Run(arch, func(t *testing.T) {
			stock := &ollama{t: t}
			stock.start(arch, []string{"m"}, "OLLAMA_KV_TIERING=0")
			o := startOllama(t, arch, "m")
			prompt := asked(story(0))
			turn := func(t *testing.T) (restored int) {
				mark, want := o.mark(), stock.generate("m", prompt)
				requireFirstOf(t, want, o.generate("m", prompt))
				prompt += want.Text + testmodel.ImEnd + "\n" + asked("And then?")
				return o.restored(mark)
			}
			turn(t)
			require.NoError(t, o.Unload(t.Context(), "m"))
			require.Greater(t, turn(t), 500)
			require.Zero(t, turn(t), "in the same slot")
			for name, end := range o.ends() {
				t.Run(name, func(t *testing.T) {
					end(t)
					require.Greater(t, turn(t), 500)
				})
			}
		})
	}
}

// ends are the ways in which a conversation loses its slot.
func (o *ollama) ends() map[string]func(*testing.T) {
	kill := func(which int) func(*testing.T) {
		return func(t *testing.T) {
			all := o.processes(t)
			require.NoError(t, unix.Kill(all[which], unix.SIGKILL))
			gone(t, all)
		}
	}
	return map[string]func(*testing.T){
		"another conversation": func(*testing.T) { o.generate("m", story(1)) },
		"keep_alive 0":         func(t *testing.T) { require.NoError(t, o.Unload(t.Context(), "m")) },
		"ollama stop": func(t *testing.T) {
			all := o.processes(t)
			require.NoError(t, o.Command(t.Context(), "stop", "m").Run())
			gone(t, all)
		},
		"interrupt": func(t *testing.T) {
			require.NoError(t, o.Stop())
			require.NoError(t, o.Restart(t.Context()))
		},
		"SIGTERM for all": func(t *testing.T) {
			all := append(o.processes(t), o.PID())
			for _, pid := range all {
				require.NoError(t, unix.Kill(pid, unix.SIGTERM))
			}
			gone(t, all)
			require.NoError(t, o.Stop())
			require.NoError(t, o.Restart(t.Context()))
		},
		"SIGKILL for Ollama": func(t *testing.T) {
			all := append(o.processes(t), o.PID())
			require.NoError(t, unix.Kill(o.PID(), unix.SIGKILL))
			gone(t, all)
			require.NoError(t, o.KillServer())
			require.NoError(t, o.Restart(t.Context()))
		},
		"SIGKILL for the front":  kill(0),
		"SIGKILL for the daemon": kill(1),
		"SIGKILL for the engine": kill(2),
		"SIGKILL for all": func(t *testing.T) {
			require.NoError(t, o.KillServer())
			require.NoError(t, o.Restart(t.Context()))
		},
	}
}

// processes lists the front, the daemon and the engine of the one loaded model.
func (o *ollama) processes(t *testing.T) []int {
	all, err := proc.Below(o.PID())
	require.NoError(t, err)
	all = slices.DeleteFunc(all, func(pid int) bool {
		stat, err := proc.Read(pid)
		return err != nil || stat.Ended()
	})
	require.Len(t, all, 3)
	return all
}

// TestTwoModelsEnd: Ollama unloads its models one after the other when it ends.
func TestTwoModelsEnd(t *testing.T) {
	models := []string{"a", "b"}
	o := startOllama(t, "qwen3", models...)
	want := make(map[string]ollamatest.Result)
	for _, m := range models {
		want[m] = o.generate(m, story(0))
	}
	loaded, err := o.PS(t.Context())
	require.NoError(t, err)
	require.Len(t, loaded, 2)
	require.NotEqual(t, want["a"].Text, want["b"].Text)
	require.NoError(t, o.Stop())
	require.NoError(t, o.Restart(t.Context()))
	for _, m := range models {
		mark := o.mark()
		requireFirstOf(t, want[m], o.generate(m, story(0)))
		require.Greater(t, o.restored(mark), 500, m)
	}
}
