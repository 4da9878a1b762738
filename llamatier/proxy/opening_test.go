package proxy

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/llamatier"
)

// opened returns an opening of a request's answer, and what the client gets.
func opened(t *testing.T, body string, a api) (*opening, *httptest.ResponseRecorder) {
	w := httptest.NewRecorder()
	o := newOpening(w, &prompt{Request: llamatier.Request{Tokens: make([]int32, 9)}, api: a, streaming: readStreaming(object(json.RawMessage(body)))}, time.Minute)
	t.Cleanup(func() { o.end() })
	return o, w
}

// step is a prompt of which some tokens are computed.
func step(processed int) llamatier.Progress {
	header := http.Header{"Content-Type": {"text/event-stream"}, "Server": {"llama.cpp"}, "Connection": {"close"}, "Keep-Alive": {"timeout=5"}}
	return llamatier.Progress{Header: header, Cached: 2, Processed: processed, Took: 3 * time.Millisecond}
}

// TestAStreamBeginsWithTheFirstStep: the client gets the header as soon as the engine computes, and
// the progress as the engine reports it.
func TestAStreamBeginsWithTheFirstStep(t *testing.T) {
	const progress = `"prompt_progress":{"cache":2,"processed":4,"time_ms":3,"total":9}`
	for name, c := range map[string]struct {
		path, body, want string
	}{
		"no progress": {"/completion", `{"stream":true}`, ""},
		"native":      {"/completion", `{"stream":true,"return_progress":true}`, `{"content":"","index":0,` + progress + `,"stop":false,"tokens":[]}`},
		"completions": {"/v1/completions", `{"stream":true,"return_progress":true,"model":"m"}`, `{"choices":[{"finish_reason":null,"index":0,"logprobs":null,"text":""}],"created":0,"id":"ID","model":"m","object":"text_completion",` + progress + `}`},
		"chat":        {"/v1/chat/completions", `{"stream":true,"return_progress":true}`, `{"choices":[{"delta":{"content":null,"role":"assistant"},"finish_reason":null,"index":0}],"created":0,"id":"ID","object":"chat.completion.chunk",` + progress + `}`},
		"messages":    {"/v1/messages", `{"stream":true,"return_progress":true}`, ""},
	} {
		o, w := opened(t, c.body, prompts[c.path])
		o.hear(step(4))
		require.True(t, w.Flushed, name)
		require.Equal(t, http.Header{"Content-Type": {"text/event-stream"}, "Server": {"llama.cpp"}}, w.Result().Header, name)
		require.True(t, o.end())
		o.hear(step(5))
		o.ping()
		if c.want == "" {
			require.Empty(t, w.Body.String(), name)
			continue
		}
		event, found := strings.CutPrefix(w.Body.String(), "data: ")
		require.True(t, found, name)
		var got map[string]any
		require.NoError(t, json.Unmarshal([]byte(event), &got), name)
		if got["id"] != nil {
			require.Equal(t, o.id, got["id"])
			require.InDelta(t, time.Now().Unix(), got["created"], 60)
			got["id"], got["created"] = "ID", 0
		}
		again, err := json.Marshal(got)
		require.NoError(t, err)
		require.JSONEq(t, c.want, string(again), name)
	}
}

// TestCommentsEndWithTheEnginesHeader: ReverseProxy flushes it while another comment may be due.
func TestCommentsEndWithTheEnginesHeader(t *testing.T) {
	o, w := opened(t, `{"stream":true}`, api{})
	o.hear(step(2))
	o.ping()
	o.WriteHeader(http.StatusOK)
	o.ping()
	require.Equal(t, ":\n\n", w.Body.String())
}

// TestAnswersAtOnceAreNotOpened: their status is the engine's.
func TestAnswersAtOnceAreNotOpened(t *testing.T) {
	for _, body := range []string{`{}`, `{"stream":false}`, `{"stream":null}`} {
		o, w := opened(t, body, api{})
		require.Nil(t, o)
		require.False(t, o.end())
		require.Empty(t, o.named())
		require.Empty(t, w.Body.String())
	}
}

// TestALongFirstStepIsPinged, as often as the client wants.
func TestALongFirstStepIsPinged(t *testing.T) {
	for body, want := range map[string]time.Duration{
		`{"stream":true}`:                            time.Minute,
		`{"stream":true,"sse_ping_interval":7}`:      7 * time.Second,
		`{"stream":true,"sse_ping_interval":-1}`:     -time.Second,
		`{"stream":true,"sse_ping_interval":null}`:   time.Minute,
		`{"stream":true,"sse_ping_interval":"none"}`: time.Minute,
	} {
		o, w := opened(t, body, api{})
		require.Equal(t, want, o.pings, body)
		o.hear(step(2))
		o.ping()
		o.ping()
		require.Equal(t, ":\n\n:\n\n", w.Body.String())
	}
}

// TestAnErrorAfterTheHeader is the stream's last event.
func TestAnErrorAfterTheHeader(t *testing.T) {
	for _, c := range []struct {
		status     int
		path, body string
		want       string
	}{
		{http.StatusBadRequest, "/completion", `{"error":{"code":400,"message":"no grammar"}}`, "data: {\"error\":{\"code\":400,\"message\":\"no grammar\"}}\n\n"},
		{http.StatusBadRequest, "/v1/messages", `{"error":{"code":400}}`, "event: error\ndata: {\"code\":400}\n\n"},
		{http.StatusBadGateway, "/completion", `gone`, "data: {\"error\":{\"code\":502,\"message\":\"gone\",\"type\":\"server_error\"}}\n\n"},
		{http.StatusOK, "/completion", "data: {}\n\n", "data: {}\n\n"},
	} {
		o, w := opened(t, `{"stream":true}`, prompts[c.path])
		o.hear(step(2))
		require.True(t, o.end())
		e := &end{opening: o, sent: true}
		res := &http.Response{StatusCode: c.status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(c.body))}
		require.NoError(t, e.passes(res))
		o.WriteHeader(res.StatusCode)
		_, err := io.Copy(o, res.Body)
		require.NoError(t, err)
		require.Equal(t, c.want, w.Body.String())
		require.Equal(t, http.StatusOK, w.Code)
	}
}

// TestEventsKeepTheirID: those that the engine sends get the id of those before them.
func TestEventsKeepTheirID(t *testing.T) {
	event := `data: {"choices":[{"delta":{"content":"\"id\":\"chatcmpl-text\""}}],"id":"chatcmpl-a1B2","tool_calls":[{"id":"call_1"},{"id":"chatcmpl-c"}]}` + "\n\n"
	for _, size := range []int{1, 3, 50, 1 << 10} {
		for id, want := range map[string]string{"": event, "chatcmpl-ours": strings.Replace(event, "a1B2", "ours", 1)} {
			r := &restamped{ReadCloser: io.NopCloser(&pieces{strings.NewReader(event), size}), staged: &llamatier.Answer{}, id: id}
			require.Equal(t, want, readAll(t, r))
		}
	}
}
