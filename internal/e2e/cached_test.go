package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/testmodel"
)

// usage is the part of an answer's last response about the prompt, in the words of /api.
type usage struct {
	Prompt int  `json:"prompt_eval_count"`
	Cached *int `json:"prompt_eval_cached_count"`
}

// computed is the number of tokens that were not cached; the count must be there.
func (u usage) computed(t *testing.T) int {
	t.Helper()
	require.NotNil(t, u.Cached, "no count")
	return u.Prompt - *u.Cached
}

// endpoint is one of the ways to ask a server.
type endpoint struct {
	path string
	body func(text string) map[string]any
	// usage finds the words of /api in a response of this endpoint; not ok: in another one.
	usage func(response []byte) (u usage, ok bool)
	// always says that the count is sent even where it is unknown: as 0.
	always bool
}

// counted is a model with the options that some endpoints have no words for.
const (
	counted           = "counted"
	countedParameters = "PARAMETER num_predict 2\nPARAMETER num_thread 1\nPARAMETER num_ctx 2048\n"
)

var endpoints = []endpoint{
	{path: "/api/generate", usage: usageOfAPI, body: func(text string) map[string]any {
		return map[string]any{"model": counted, "prompt": text, "raw": true}
	}},
	{path: "/api/chat", usage: usageOfAPI, body: func(text string) map[string]any {
		return map[string]any{"model": counted, "messages": userSays(text)}
	}},
	{path: "/v1/chat/completions", usage: usageOfCompletions, body: func(text string) map[string]any {
		return map[string]any{"model": counted, "messages": userSays(text), "stream_options": map[string]any{"include_usage": true}}
	}},
	{path: "/v1/completions", usage: usageOfCompletions, body: func(text string) map[string]any {
		return map[string]any{"model": counted, "prompt": text, "stream_options": map[string]any{"include_usage": true}}
	}},
	{path: "/v1/responses", usage: usageOfResponses, always: true, body: func(text string) map[string]any {
		return map[string]any{"model": counted, "input": text}
	}},
	{path: "/v1/messages", usage: usageOfMessages, body: func(text string) map[string]any {
		return map[string]any{"model": counted, "messages": userSays(text), "max_tokens": 2}
	}},
}

func userSays(text string) []map[string]any {
	return []map[string]any{{"role": "user", "content": text}}
}

func usageOfAPI(response []byte) (usage, bool) {
	var r struct {
		Done bool
		usage
	}
	return r.usage, json.Unmarshal(response, &r) == nil && r.Done
}

func usageOfCompletions(response []byte) (usage, bool) {
	var r struct {
		Usage *struct {
			PromptTokens        int `json:"prompt_tokens"`
			PromptTokensDetails *struct {
				CachedTokens int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	// each response of a stream of /v1/completions has a usage, which is 0 before the last
	if json.Unmarshal(response, &r) != nil || r.Usage == nil || r.Usage.PromptTokens == 0 {
		return usage{}, false
	}
	u := usage{Prompt: r.Usage.PromptTokens}
	if details := r.Usage.PromptTokensDetails; details != nil {
		u.Cached = &details.CachedTokens
	}
	return u, true
}

func usageOfResponses(response []byte) (usage, bool) {
	type used struct {
		InputTokens        int `json:"input_tokens"`
		InputTokensDetails struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"input_tokens_details"`
	}
	var r struct {
		Usage    *used
		Response struct{ Usage *used } // of a stream
	}
	if json.Unmarshal(response, &r) != nil {
		return usage{}, false
	}
	if r.Usage == nil {
		r.Usage = r.Response.Usage
	}
	if r.Usage == nil {
		return usage{}, false
	}
	return usage{Prompt: r.Usage.InputTokens, Cached: &r.Usage.InputTokensDetails.CachedTokens}, true
}

func usageOfMessages(response []byte) (usage, bool) {
	var r struct {
		Type  string
		Usage struct {
			InputTokens int  `json:"input_tokens"`
			CacheRead   *int `json:"cache_read_input_tokens"`
		}
	}
	if json.Unmarshal(response, &r) != nil || r.Type != "message" && r.Type != "message_delta" {
		return usage{}, false
	}
	u := usage{Prompt: r.Usage.InputTokens, Cached: r.Usage.CacheRead}
	if u.Cached != nil {
		u.Prompt += *u.Cached
	}
	return u, true
}

// askAt asks an endpoint and returns the usage of its last response. No other response has a
// count.
func (s *server) askAt(e endpoint, text string, stream bool, change ...func(map[string]any)) usage {
	s.t.Helper()
	body := e.body(text)
	body["stream"] = stream
	if !stream {
		delete(body, "stream_options")
	}
	for _, f := range change {
		f(body)
	}
	data, err := json.Marshal(body)
	require.NoError(s.t, err)
	status, answer, err := s.post(s.URL().JoinPath(e.path), string(data))
	require.NoError(s.t, err)
	var got []usage
	for line := range strings.Lines(answer) {
		line = strings.TrimPrefix(line, "data: ")
		if u, ok := e.usage([]byte(line)); ok {
			got = append(got, u)
		} else {
			require.NotContains(s.t, line, "cached_", "%s: not the last response", e.path)
			require.NotContains(s.t, line, "cache_read", "%s: not the last response", e.path)
		}
	}
	require.Equal(s.t, http.StatusOK, status, e.path)
	require.Len(s.t, got, 1, e.path)
	return got[0]
}

// startCounted starts a server that has the model counted.
func startCounted(t *testing.T, env ...string) *server {
	t.Helper()
	s := start(t, env...)
	require.NoError(t, s.CreateModel(s.context(), counted, shared.gguf, testmodel.Modelfile(shared.gguf)+countedParameters))
	return s
}

// TestCachedCount: every endpoint tells, streaming and not, how much of a prompt was not
// computed: nothing of a new one, all but the last token of one that is in the slot or in the
// store, and the beginning that a prompt shares with another.
func TestCachedCount(t *testing.T) {
	for i, e := range endpoints {
		t.Run(strings.ReplaceAll(strings.TrimPrefix(e.path, "/"), "/", "-"), func(t *testing.T) {
			s := startCounted(t)
			text := prompt(t, 600, int64(100+i))

			first := s.askAt(e, text, false)
			require.Equal(t, first.Prompt, first.computed(t), "a new prompt")
			require.Equal(t, 1, s.askAt(e, text, true).computed(t), "in the slot, streaming")
			require.Equal(t, 1, s.askAt(e, text, false).computed(t), "in the slot")

			s.crash()
			restored := s.askAt(e, text, true)
			require.Equal(t, 1, restored.computed(t), "the first request after a restart")
			require.Equal(t, first.Prompt, restored.Prompt, "the count is that of the whole prompt")

			other := text[:len(text)/2] + prompt(t, 300, int64(200+i))
			shared := s.askAt(e, other, false)
			require.Less(t, shared.computed(t), shared.Prompt*3/4, "a shared beginning")
			require.Greater(t, shared.computed(t), shared.Prompt/4, "a shared beginning")
		})
	}
}

// TestCachedCountOfAPrivateRequest: with kv_store false a prompt is counted as well, and
// leaves nothing for the next start.
func TestCachedCountOfAPrivateRequest(t *testing.T) {
	s := startCounted(t)
	e, text := endpoints[0], prompt(t, 600, 1)
	private := func(body map[string]any) { body["options"] = map[string]any{"kv_store": false} }
	require.Equal(t, 600, s.askAt(e, text, false, private).computed(t))
	require.Equal(t, 1, s.askAt(e, text, false, private).computed(t), "in the slot")
	s.crash()
	require.Equal(t, 600, s.askAt(e, text, false, private).computed(t), "not in the store")
}

// TestCachedCountIsOffWithTiering: answers have the fields of upstream's release.
func TestCachedCountIsOffWithTiering(t *testing.T) {
	s := startCounted(t, "OLLAMA_KV_TIERING=0")
	text := prompt(t, 300, 1)
	for _, e := range endpoints {
		for _, stream := range []bool{false, true} {
			u := s.askAt(e, text, stream)
			if e.always {
				require.Zero(t, *u.Cached, e.path)
			} else {
				require.Nil(t, u.Cached, e.path)
			}
		}
	}
	out, err := s.Command(s.context(), "run", counted, "--verbose", "hello").CombinedOutput()
	require.NoError(t, err)
	require.NotContains(t, string(out), "cached")
}

// TestCachedCountOfAVerboseRun: ollama run shows the count of a prompt that is in the slot.
func TestCachedCountOfAVerboseRun(t *testing.T) {
	s := startCounted(t)
	var outs []string
	for range 2 {
		out, err := s.Command(s.context(), "run", counted, "--verbose", "tell me a story").CombinedOutput()
		require.NoError(t, err)
		require.Contains(t, string(out), "prompt eval rate:")
		outs = append(outs, string(out))
	}
	require.NotContains(t, outs[0], "prompt eval cached:")
	require.Contains(t, outs[1], "prompt eval cached:")
}

// TestNoCachedCountElsewhere: errors and embeddings say nothing of a cache.
func TestNoCachedCountElsewhere(t *testing.T) {
	s := startCounted(t)
	for path, body := range map[string]string{
		"/api/embed":           `{"model":"` + counted + `","input":"some words"}`,
		"/api/generate":        `{"model":"absent","prompt":"some words"}`,
		"/v1/chat/completions": `{"model":"absent","messages":[{"role":"user","content":"some words"}]}`,
		"/v1/messages":         `{"model":"absent","max_tokens":1,"messages":[{"role":"user","content":"some words"}]}`,
	} {
		_, answer, err := s.post(s.URL().JoinPath(path), body)
		require.NoError(t, err)
		require.NotContains(t, answer, "cache", path)
	}
}
