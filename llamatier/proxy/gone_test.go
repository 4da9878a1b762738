package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier"
)

// lines is a log that several goroutines write.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// watched is a Handler before a Tier with one slot, whose engine answers each prompt at once.
type watched struct {
	*Handler
	lines  lines
	visit  func(path string) // is called when the engine gets a request, except for metrics; nil for nothing
	timers chan func()

	tokens    string // of a prompt
	status    int    // of an answer to a prompt
	refusal   int    // status of an answer to other requests; 0 for OK
	cached    int    // tokens of a prompt that the slot held before
	generated atomic.Int64
}

func watch(t *testing.T) *watched {
	w := &watched{timers: make(chan func(), 100), tokens: "1,2,3", status: http.StatusOK}
	e := listen(t, func(res http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path != "/metrics" && w.visit != nil { // the Tier reads the metrics when it likes
			w.visit(r.URL.Path)
		}
		if r.URL.Query().Get("action") == "erase" { // an emptied slot would be stored again
			res.WriteHeader(http.StatusInternalServerError)
			return
		}
		switch r.URL.Path {
		case "/slots":
			_, _ = io.WriteString(res, `[{"is_processing":false,"n_ctx":1000,"n_prompt_tokens":3}]`)
		case "/metrics":
			_, _ = fmt.Fprintf(res, "llamacpp:tokens_predicted_total %d\n", w.generated.Load())
		case "/tokenize":
			_, _ = fmt.Fprintf(res, `{"tokens":[%s]}`, w.tokens)
		case "/completion":
			if w.status != http.StatusOK {
				res.WriteHeader(w.status)
				return
			}
			_, _ = fmt.Fprintf(res, `{"timings":{"cache_n":%d,"prompt_n":%d,"predicted_n":1,"prompt_ms":1}}`, w.cached, 3-w.cached)
		default:
			if w.refusal != 0 && !strings.HasPrefix(r.URL.Path, "/slots/") {
				res.WriteHeader(w.refusal)
			}
			_, _ = io.WriteString(res, "{}")
		}
	})
	log := slog.New(slog.NewTextHandler(&w.lines, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w.Handler = loaded(e, Ours{}, log)
	w.Use(llamatier.New(llamatier.Options{
		Engine: e, Shape: &llamastate.Shape{}, Slots: 1, Context: 1000, Files: newFiles(t), Store: noPages{}, Log: log,
		AfterFunc: func(_ time.Duration, f func()) interface{ Stop() bool } {
			w.timers <- f
			return time.NewTimer(time.Hour)
		},
	}))
	return w
}

// post sends a request and returns when the handler has returned or has given up the connection.
func (w *watched) post(ctx context.Context, path, body string) {
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler {
			panic(p)
		}
	}()
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)).WithContext(ctx)
	w.ServeHTTP(httptest.NewRecorder(), r)
}

// trusted reports whether the rows of the slot may be stored. The slot's file is not a real one.
func (w *watched) trusted(t *testing.T) bool {
	(<-w.timers)()
	require.Contains(t, w.lines.String(), "slot not stored")
	return !strings.Contains(w.lines.String(), "it holds rows of a shifted context")
}

// TestAClientThatGoesAway while its prompt is looked at, or while it waits for a slot, leaves the
// slots as they were.
func TestAClientThatGoesAway(t *testing.T) {
	w := watch(t)
	w.post(t.Context(), "/completion", `{"prompt":"a"}`)
	ctx, cancel := context.WithCancel(t.Context())
	w.visit = func(path string) {
		if path == "/tokenize" {
			cancel()
		}
	}
	w.post(ctx, "/completion", `{"prompt":"b"}`)
	w.visit = nil
	w.post(ctx, "/completion", `{"prompt":[4,5]}`)
	require.Equal(t, 4, w.Tier().Slots()[0].Tokens, "those of the answer that was heard")
	require.True(t, w.trusted(t))
}

// TestARefusal of a prompt that is longer than the context leaves the slot as it was. Another may
// come after the engine has filled the slot: it may not understand its own answer.
func TestARefusal(t *testing.T) {
	for _, c := range []struct {
		tokens    int
		generated int64
		broken    bool
	}{{1000, 0, false}, {1000, 5000, false}, {3, 0, false}, {3, 5000, true}} {
		w := watch(t)
		w.post(t.Context(), "/completion", `{"prompt":"a"}`)
		<-w.timers
		w.tokens = strings.TrimSuffix(strings.Repeat("1,", c.tokens), ",")
		w.status = http.StatusBadRequest
		w.visit = func(path string) {
			if path == "/completion" {
				w.generated.Add(c.generated)
			}
		}
		w.post(t.Context(), "/completion", `{"prompt":"b"}`)
		(<-w.timers)()
		require.Equal(t, c.broken, strings.Contains(w.lines.String(), "may have been shifted"), "%+v", c)
	}
}

// TestRequestsOfOtherPaths leave the slots as they were where they compute nothing, or are refused before anything is
// computed. After another request a slot is not stored until it is computed from the beginning.
func TestRequestsOfOtherPaths(t *testing.T) {
	const some, chat = "/v1/embeddings", "/v1/messages"
	for _, c := range []struct {
		path    string
		status  int
		trusted bool
	}{
		{"/tokenize", http.StatusOK, true}, {"/v1/streams/lookup", http.StatusOK, true}, {"/props", http.StatusOK, true},
		{"/v1/chat/completions/control", http.StatusOK, true}, {"/v1/chat/completions/input_tokens", http.StatusOK, true},
		{"/chat/completions/input_tokens", http.StatusOK, true}, {"/responses/input_tokens", http.StatusOK, true},
		{"/tools", http.StatusOK, true}, {"/cors-proxy", http.StatusOK, true},
		{chat, http.StatusOK, false}, {"/infill", http.StatusOK, false}, {"/predict", http.StatusOK, false},
		{some, http.StatusNotFound, true}, {some, http.StatusNotImplemented, true}, {some, http.StatusUnauthorized, true},
		{some, http.StatusBadRequest, false}, {some, http.StatusInternalServerError, false}, {some, http.StatusOK, false},
		{chat, http.StatusBadRequest, true}, {chat, http.StatusInternalServerError, false}, {"/infill", http.StatusBadRequest, true},
	} {
		w := watch(t)
		w.post(t.Context(), "/completion", `{"prompt":"a"}`)
		w.refusal = c.status
		w.post(t.Context(), c.path, `{"messages":0}`)
		w.cached = 1
		w.post(t.Context(), "/completion", `{"prompt":"a"}`)
		<-w.timers
		require.Equal(t, c.trusted, w.trusted(t), "%+v", c)
	}
}

// TestARequestThatWaitsForASave holds up no other.
func TestARequestThatWaitsForASave(t *testing.T) {
	w := watch(t)
	w.post(t.Context(), "/completion", `{"prompt":"a"}`)
	saving, saved := make(chan struct{}), make(chan struct{})
	w.visit = func(path string) {
		if path == "/slots/0" {
			close(saving)
			<-saved
		}
	}
	var all sync.WaitGroup
	all.Add(2)
	go func() { defer all.Done(); (<-w.timers)() }()
	<-saving
	go func() { defer all.Done(); w.post(t.Context(), "/infill", `{}`) }()
	stacks := make([]byte, 1<<20)
	for !bytes.Contains(stacks, []byte("(*Tier).Pass")) {
		runtime.Gosched()
		stacks = stacks[:runtime.Stack(stacks[:cap(stacks)], true)]
	}
	free := w.mu.TryLock()
	close(saved)
	require.True(t, free)
	w.mu.Unlock()
	all.Wait()
}

// TestAnEngineThatMakesNoTokens answers prompts still, which pass through.
func TestAnEngineThatMakesNoTokens(t *testing.T) {
	for path, request := range map[string]string{
		"/tokenize":       `{"prompt":"text"}`,
		"/apply-template": `{"messages":[{"role":"user","content":"text"}]}`,
		"/props":          `{"prompt":{"prompt_string":"text","multimodal_data":["AAAA"]}}`,
	} {
		e := listen(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			switch r.URL.Path {
			case path:
				<-r.Context().Done()
			case "/completion", "/chat/completions":
				_, _ = w.Write(body)
			}
		})
		h := loaded(e, Ours{}, slog.New(slog.DiscardHandler))
		h.patience = time.Millisecond
		h.Use(llamatier.New(llamatier.Options{Engine: e, Slots: 1, Context: 1000, Log: slog.New(slog.DiscardHandler)}))
		to := "/completion"
		if strings.Contains(request, "messages") {
			to = "/chat/completions"
		}
		_, body := post(t, web(t, h)+to, request)
		require.Equal(t, request, body, path)
	}
}
