package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier"
)

// twice is a chat for which a client wants two answers.
var twice = strings.TrimSuffix(chat("a"), "}") + `,"n":2,"n_predict":8,"logprobs":true,"grammar":"g","chat_format":99`

// prefilling is an engine that computes 99 tokens of any prompt before it answers a chat. The function returns the
// bodies of both since the last call, by path.
func prefilling(t *testing.T) (*chats, func() map[string][]string) {
	c := newChats(t, 2)
	var mu sync.Mutex
	got := map[string][]string{}
	c.on(func(path, body string, w http.ResponseWriter) bool {
		if path == "/props" {
			_, _ = io.WriteString(w, `{"media_marker":"<image>"}`)
			return true
		}
		if path != "/completion" && !prompts[path].chat {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		got[path] = append(got[path], body)
		if path == "/completion" {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"prompt_progress\":{\"cache\":5,\"processed\":104,\"time_ms\":7}}\n\n")
			_, _ = io.WriteString(w, "data: {\"timings\":{\"cache_n\":5,\"prompt_n\":99,\"predicted_n\":1,\"prompt_ms\":7}}\n\n")
			return true
		}
		_, _ = io.WriteString(w, `{"choices":[{},{}],"timings":{"cache_n":104,"prompt_n":1,"prompt_ms":1}}`)
		return true
	})
	return c, func() map[string][]string {
		mu.Lock()
		defer mu.Unlock()
		all := got
		got = map[string][]string{}
		return all
	}
}

// TestAPromptOfSeveralAnswers is computed before the request passes as it is, in one account.
func TestAPromptOfSeveralAnswers(t *testing.T) {
	const path = "/v1/chat/completions"
	c, got := prefilling(t)
	status, answer := post(t, c.url+path, twice+"}")
	require.Equal(t, http.StatusOK, status)
	require.JSONEq(t, `{"choices":[{},{}],"timings":{"cache_n":5,"prompt_n":100,"prompt_ms":8}}`, answer)
	all := got()
	require.Equal(t, []string{twice + "}"}, all[path])
	require.Len(t, all["/completion"], 1)
	var before struct {
		Prompt      []int32
		Predict     int `json:"n_predict"`
		Slot        int `json:"id_slot"`
		Grammar     string
		Logprobs    bool
		N, Messages json.RawMessage
		Form        json.RawMessage `json:"chat_format"`
	}
	require.NoError(t, json.Unmarshal([]byte(all["/completion"][0]), &before))
	require.Len(t, before.Prompt, len(twice), "without the last token")
	require.Equal(t, []any{0, 1, "g", true}, []any{before.Predict, before.Slot, before.Grammar, before.Logprobs})
	require.Empty(t, string(before.N)+string(before.Messages)+string(before.Form))

	status, answer = post(t, c.url+path, twice+`,"stream":true,"return_progress":true}`)
	require.Equal(t, http.StatusOK, status)
	first, rest, _ := strings.Cut(answer, "\n\n")
	require.Contains(t, first, `"prompt_progress":{"cache":5,"processed":104,"time_ms":7,`)
	require.JSONEq(t, `{"choices":[{},{}],"timings":{"cache_n":5,"prompt_n":100,"prompt_ms":8}}`, rest)
}

// TestSeveralAnswersThatPass at once, because nothing can be computed before, or the engine refuses them.
func TestSeveralAnswersThatPass(t *testing.T) {
	c, got := prefilling(t)
	single := strings.TrimSuffix(chat("a"), "}")
	for _, body := range []string{
		single + `,"n":3}`, single + `,"n":0}`, single + `,"n":-2}`, single + `,"n":"2"}`, single + `,"n":2.5}`,
		single + `,"n":2,"n_cmpl":1}`, single + `,"n":2,"n_cmpl":2}`, twice + `,"kv_store":false}`,
		twice + `,"response_fields":["content"]}`, twice + `,"cache_prompt":false}`,
		`{"n":2,"messages":[{"role":"user","content":[{"type":"text","text":"` + strings.Repeat("x", 100) + `<image>"},{"type":"image_url","image_url":{"url":"http://a"}}]}]}`,
	} {
		_, _ = post(t, c.url+"/v1/chat/completions", body)
		require.Equal(t, map[string][]string{"/v1/chat/completions": {body}}, got())
	}
	for _, path := range []string{"/v1/messages", "/v1/responses"} {
		body := twice + `,"input":"` + strings.Repeat("a", 100) + `"}`
		_, _ = post(t, c.url+path, body)
		require.Equal(t, map[string][]string{path: {body}}, got())
	}
}

// TestAPromptThatIsNotFound in the slot that has computed it is not computed before.
func TestAPromptThatIsNotFound(t *testing.T) {
	const path = "/v1/chat/completions"
	c, got := prefilling(t)
	part := float64(len(twice)) / float64(len(twice)+1) // all but its last token
	for similarity, before := range map[float64]int{0: 0, part: 0, part - 1e-6: 1, 1: 0, 1e30: 0, -1: 1} {
		c.h.Use(llamatier.New(llamatier.Options{
			Engine: c.h.engine, Shape: &llamastate.Shape{}, Slots: 2, Similarity: similarity, Context: 40000, Files: newFiles(t), Store: noPages{}, Idle: time.Hour, Log: c.h.log,
		}))
		_, _ = post(t, c.url+path, twice+"}")
		all := got()
		require.Len(t, all["/completion"], before, similarity)
		require.Equal(t, []string{twice + "}"}, all[path])
	}
}

// TestSeveralAnswersThatAreRefused: the client gets the engine's error, with its status.
func TestSeveralAnswersThatAreRefused(t *testing.T) {
	c := newChats(t, 2)
	c.on(func(path, body string, w http.ResponseWriter) bool {
		if path == "/completion" || path == "/v1/chat/completions" {
			http.Error(w, path, http.StatusBadRequest)
			return true
		}
		return false
	})
	status, answer := post(t, c.url+"/v1/chat/completions", twice+`,"stream":true}`)
	require.Equal(t, []any{http.StatusBadRequest, "/v1/chat/completions\n"}, []any{status, answer})
	c.free()
}

// TestAClientThatWantsSeveralAnswersGoesAway while the prompt is computed: the engine does not get the request, and
// no slot is touched for it.
func TestAClientThatWantsSeveralAnswersGoesAway(t *testing.T) {
	c := newChats(t, 2)
	c.says(chat("b"))
	c.seen()
	ctx, cancel := context.WithCancel(t.Context())
	c.on(func(path, body string, w http.ResponseWriter) bool {
		if path == "/completion" {
			cancel()
		}
		return false
	})
	asking(ctx, c.h, "/v1/chat/completions", "", "", strings.Repeat("a", 2000), `,"n":2`) // in another slot
	c.free()
	seen := c.seen()
	require.Contains(t, seen, "/completion")
	require.NotContains(t, seen, "/v1/chat/completions")
	require.NotContains(t, seen, "/slots/0?action=save")
}

// TestARefusalAfterTheHeader is the stream's last event, behind which no comments come.
func TestARefusalAfterTheHeader(t *testing.T) {
	o, w := opened(t, `{"stream":true}`, api{})
	o.hear(step(2))
	fails(o, http.StatusServiceUnavailable, `"code":503`)
	o.ping()
	require.Equal(t, "data: {\"error\":{\"code\":503}}\n\n", w.Body.String())
	w = httptest.NewRecorder()
	fails(w, http.StatusServiceUnavailable, `"code":503`)
	require.Equal(t, fmt.Sprint(`{"error":{"code":503}}`, 503), fmt.Sprint(w.Body.String(), w.Code))
}
