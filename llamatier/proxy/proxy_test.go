package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier"
	"github.com/kvtier/kvtier/llamatier/slotfile"
)

// listen serves a handler on a Unix socket, as the engine.
func listen(t *testing.T, h http.HandlerFunc) *llamatier.Engine {
	socket := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	s := &http.Server{Handler: h}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return llamatier.Dial(socket)
}

// newFiles returns the files of an engine.
func newFiles(t *testing.T) *slotfile.Files {
	folder, err := slotfile.NewFolder(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, folder.Remove()) })
	return slotfile.New(folder, slotfile.Options{Log: slog.New(slog.DiscardHandler)})
}

// before returns a server before an engine, without a Tier.
func before(t *testing.T, e *llamatier.Engine, ready bool) string {
	state := State{Listening: func() bool { return false }, Ready: func() bool { return ready }}
	return web(t, New(e, Ours{}, state, slog.New(slog.DiscardHandler)))
}

// loaded returns a Handler before an engine that has loaded its model.
func loaded(e *llamatier.Engine, ours Ours, log *slog.Logger) *Handler {
	yes := func() bool { return true }
	return New(e, ours, State{Listening: yes, Ready: yes}, log)
}

// aTier returns a Tier before an engine with some slots. Its store has no pages.
func aTier(t *testing.T, e *llamatier.Engine, slots int, log *slog.Logger) *llamatier.Tier {
	return llamatier.New(llamatier.Options{
		Engine: e, Shape: &llamastate.Shape{}, Slots: slots, Search: true, Similarity: 0.1, Context: 40000, Files: newFiles(t), Store: noPages{}, Idle: time.Hour, Log: log,
	})
}

// web serves a Handler as long as a test runs, and returns its address.
func web(t *testing.T, h *Handler) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func get(t *testing.T, url string) (int, string) { return send(t, http.MethodGet, url, "", nil) }

func post(t *testing.T, url, body string) (int, string) {
	return send(t, http.MethodPost, url, body, http.Header{"Content-Type": {"application/json"}})
}

// send sends a request, and returns the status and the body of the answer.
func send(t *testing.T, method, url, body string, header http.Header) (int, string) {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	require.NoError(t, err)
	req.Header = header
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	return res.StatusCode, readAll(t, res.Body)
}

// readAll is the text of a reader, which has no error.
func readAll(t *testing.T, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(b)
}

// TestAnEngineThatCannotBeReachedIsLoading, as a program that waits for it expects.
func TestAnEngineThatCannotBeReachedIsLoading(t *testing.T) {
	status, body := get(t, before(t, llamatier.Dial(filepath.Join(t.TempDir(), "none.sock")), true)+"/health")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.JSONEq(t, `{"error":{"message":"Loading model","type":"unavailable_error","code":503}}`, body)
}

// TestTheEndOfTheEngine: no server would answer that it is loading once it has ended. Ollama
// loads the model again when it gets no answer.
func TestTheEndOfTheEngine(t *testing.T) {
	gone := llamatier.Dial(filepath.Join(t.TempDir(), "none.sock"))
	cut := listen(t, func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) })
	middle := listen(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "data: {}")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	for name, e := range map[string]*llamatier.Engine{"gone": gone, "cut": cut, "in the middle": middle} {
		url := web(t, loaded(e, Ours{}, slog.New(slog.DiscardHandler)))
		for _, path := range []string{"/health", "/v1/models", "/completion"} {
			res, err := http.Post(url+path, "application/json", strings.NewReader(`{"prompt":[1,2]}`))
			if err == nil {
				require.Equal(t, "in the middle", name)
				_, err = io.ReadAll(res.Body)
				res.Body.Close()
			}
			require.Error(t, err, name)
		}
	}
}

// TestHealthWaitsForTheTier: the first prompt must not come before the engine was looked at.
func TestHealthWaitsForTheTier(t *testing.T) {
	e := listen(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, `{"status":"ok"}`) })
	status, _ := get(t, before(t, e, false)+"/health")
	require.Equal(t, http.StatusServiceUnavailable, status)
	status, body := get(t, before(t, e, true)+"/health")
	require.Equal(t, http.StatusOK, status)
	require.JSONEq(t, `{"status":"ok"}`, body)
}

// TestRequestsPassThroughAsTheyAre: path, query, headers and body.
func TestRequestsPassThroughAsTheyAre(t *testing.T) {
	var got *http.Request
	var body string
	e := listen(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got, body = r, string(b)
		w.Header().Set("X-Answer", "5")
		w.WriteHeader(http.StatusTeapot)
	})
	req, err := http.NewRequest(http.MethodPost, before(t, e, true)+"/some/path?a=1&b=%20;c&d=%z", strings.NewReader("{ \"x\" :1}"))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer key")
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	res.Body.Close()
	require.Equal(t, http.StatusTeapot, res.StatusCode)
	require.Equal(t, "5", res.Header.Get("X-Answer"))
	require.Equal(t, "/some/path?a=1&b=%20;c&d=%z", got.URL.String())
	require.Equal(t, "Bearer key", got.Header.Get("Authorization"))
	require.Equal(t, "{ \"x\" :1}", body)
}

// TestRequestsBeforeTheTier: a store that opens late gives slots to the prompts from then on. A
// slot in which an earlier request still runs is not given to anybody.
func TestRequestsBeforeTheTier(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	var running atomic.Bool
	e := listen(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/slots":
			_, _ = fmt.Fprintf(w, `[{"is_processing":%t,"n_ctx":1000},{"is_processing":false,"n_ctx":1000}]`, running.Load())
		case "/completion":
			if strings.Contains(string(body), "early") {
				running.Store(true)
				close(entered)
				<-leave
				running.Store(false)
			}
			_, _ = w.Write(body)
		case "/tokenize":
			_, _ = io.WriteString(w, `{"tokens":[1]}`)
		}
	})
	var lines bytes.Buffer
	log := slog.New(slog.NewTextHandler(&lines, nil))
	h := loaded(e, Ours{}, log)
	url := web(t, h)
	send := func(body string) string {
		_, answer := post(t, url+"/completion", body)
		return answer
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		require.NotContains(t, send(`{"prompt":"early"}`), "id_slot")
	}()
	<-entered
	h.Use(aTier(t, e, 2, log))
	require.NotContains(t, send(`{"prompt":"late"}`), "id_slot")
	close(leave)
	<-over
	require.Contains(t, send(`{"prompt":"late"}`), `"id_slot":0`)
	require.NotContains(t, lines.String(), "off")
}

// noPages is a store without pages.
type noPages struct{ llamatier.Store }

func (noPages) Find(context.Context, diskstore.Prompt) diskstore.Found { return diskstore.Found{} }

// TestKeys: no slot is touched for a request whose key the engine has not found right. The engine
// sees such a request, and refuses it itself.
func TestKeys(t *testing.T) {
	var asked []string // for slots
	var broken bool
	e := listen(t, func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Authorization")
		switch {
		case key != "Bearer key" && r.Header.Get("X-Api-Key") != "key":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/tokenize" && broken:
			w.WriteHeader(http.StatusInternalServerError)
		case r.URL.Path == "/tokenize":
			_, _ = io.WriteString(w, `{"tokens":[1]}`)
		case strings.HasPrefix(r.URL.Path, "/slots"), r.URL.Path == "/metrics":
			asked = append(asked, r.URL.Path)
			_, _ = io.WriteString(w, "llamacpp:tokens_predicted_total 5\n")
		case r.URL.Path == "/completion":
			b, _ := io.ReadAll(r.Body)
			_, _ = w.Write(b)
		}
	})
	e.Key = "key"
	log := slog.New(slog.DiscardHandler)
	h := loaded(e, Ours{SavePath: true, Metrics: true, Keys: true}, log)
	h.Use(aTier(t, e, 1, log))
	url := web(t, h)
	send := func(name, key string) (int, string) {
		return send(t, http.MethodPost, url+"/completion", `{"prompt":[1,2]}`, http.Header{name: {key}})
	}
	for _, key := range []string{"", "Bearer other", "Bearer key2"} {
		status, _ := send("Authorization", key)
		require.Equal(t, http.StatusUnauthorized, status)
	}
	require.Empty(t, asked)
	for name, key := range map[string]string{"Authorization": "Bearer key", "X-Api-Key": "key"} {
		status, body := send(name, key)
		require.Equal(t, http.StatusOK, status)
		require.Contains(t, body, `"id_slot":0`)
	}
	require.NotEmpty(t, asked)
	broken, asked = true, nil
	status, body := send("Authorization", "Bearer key")
	require.Equal(t, http.StatusOK, status)
	require.NotContains(t, body, "id_slot")
	require.Empty(t, asked)
}

// TestAdaptersBeforeTheTier: rows do not follow from the model alone, also in a Tier that comes
// later.
func TestAdaptersBeforeTheTier(t *testing.T) {
	e := listen(t, func(w http.ResponseWriter, r *http.Request) {})
	var lines bytes.Buffer
	log := slog.New(slog.NewTextHandler(&lines, nil))
	h := loaded(e, Ours{}, log)
	post(t, web(t, h)+"/lora-adapters", "[]")
	h.Use(llamatier.New(llamatier.Options{Engine: e, Slots: 1, Log: log}))
	require.Contains(t, lines.String(), "adapters were changed")
}

// TestUnderstanding: the prompts that get a slot, and the others, which pass through.
func TestUnderstanding(t *testing.T) {
	e := listen(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/apply-template":
			_, _ = io.WriteString(w, `{"prompt":"chat"}`)
		case "/tokenize":
			var in struct{ Content any }
			_ = json.NewDecoder(r.Body).Decode(&in)
			tokens := []int{}
			if text, ok := in.Content.(string); ok {
				tokens = append(tokens, len(text))
			} else { // a list that llama-server reads itself
				tokens = append(tokens, 1000+len(in.Content.([]any)))
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"tokens": tokens})
		}
	})
	h := New(e, Ours{}, State{}, slog.New(slog.DiscardHandler))
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	for body, want := range map[string]llamatier.Request{
		`{"prompt":"four"}`:                             {Tokens: []int32{4}, Slot: -1},
		` {"prompt": [1,2,3], "n_predict":5}`:           {Tokens: []int32{1, 2, 3}, Slot: -1},
		`{"prompt":[5]}`:                                {Tokens: []int32{5}, Slot: -1},
		`{"prompt":["four"]}`:                           {Tokens: []int32{4}, Slot: -1},
		`{"prompt":[[1,2]]}`:                            {Tokens: []int32{1, 2}, Slot: -1},
		`{"prompt":["a",1,"b"]}`:                        {Tokens: []int32{1003}, Slot: -1},
		`{"prompt":[ [1,"a"] ]}`:                        {Tokens: []int32{1002}, Slot: -1},
		`{"prompt":[{"prompt_string":"four"}]}`:         {Tokens: []int32{4}, Slot: -1},
		`{"prompt":"four","id_slot":2}`:                 {Tokens: []int32{4}, Slot: 2},
		`{"prompt":"four","id_slot":-1}`:                {Tokens: []int32{4}, Slot: -1},
		`{"prompt":"four","lora":[{"id":0}],"LORA":[]}`: {Tokens: []int32{4}, Slot: -1, Private: true},
		`{"prompt":"four","ID_SLOT":1}`:                 {Tokens: []int32{4}, Slot: -1},
		`{"prompt":"four","response_fields":["a"]}`:     {Tokens: []int32{4}, Slot: -1, AtOnce: true},
		`{"prompt":"four","kv_store":false}`:            {Tokens: []int32{4}, Slot: -1, Private: true},
		`{"prompt":"four","lora":[{"id":0}]}`:           {Tokens: []int32{4}, Slot: -1, Private: true},
		`{"prompt":"four","lora":[],"n":1}`:             {Tokens: []int32{4}, Slot: -1},
		`{"prompt":"four","cache_prompt":true}`:         {Tokens: []int32{4}, Slot: -1},
		`{"prompt":"four","n_cache_reuse":0,"n":null}`:  {Tokens: []int32{4}, Slot: -1},
	} {
		p, err := h.understand(r, []byte(body), api{})
		require.NoError(t, err, body)
		require.Equal(t, want, p.Request, body)
		var pinned struct {
			Slot int `json:"id_slot"`
		}
		require.NoError(t, json.Unmarshal(p.pinned([]byte(body), 7), &pinned), body)
		if want.Slot < 0 && !p.asIs {
			require.Equal(t, 7, pinned.Slot, body)
		}
	}
	kept := r.Clone(t.Context())
	kept.Header.Set("X-Conversation-Id", "a")
	p, err := h.understand(kept, []byte(`{"prompt":[1]}`), api{})
	require.NoError(t, err)
	require.Equal(t, llamatier.Request{Tokens: []int32{1}, Slot: -1, AtOnce: true}, p.Request, "its answer may be read again from a byte on")
	p, err = h.understand(r, []byte(`{"messages":[{"role":"user","content":"hi"}]}`), api{chat: true})
	require.NoError(t, err)
	require.Equal(t, []int32{4}, p.Tokens)

	for _, body := range []string{
		``, `[]`, `{}`, `null`, `{"prompt":5}`, `{"prompt":[]}`, `{"prompt":["a","b"]}`, `{"prompt":[[1],[2]]}`,
		`{"prompt":[["a"]]}`, `{"prompt":[[]]}`, `{"prompt":[[[1]]]}`, `{"prompt":[1,null,"a"]}`, `{"prompt":[1,"a",2.5]}`, `{"prompt":[1,"a",[2]]}`, `{"prompt":[null]}`,
		`{"prompt":{"prompt_string":"a","multimodal_data":["b"]}}`,
		`{"prompt":"four","cache_prompt":false}`, `{"prompt":"four","n_cache_reuse":256}`, `{"prompt":"four"`,
		`{"prompt":"four","id_slot":4294967297}`, // slot 1 for llama-server, whose numbers have 32 bits
	} {
		_, err := h.understand(r, []byte(body), api{})
		require.Error(t, err, body)
	}
}

// TestTextsWithAGap: the prompt that llama-server makes of one, as far as there is room and the model has tokens for the
// parts.
func TestTextsWithAGap(t *testing.T) {
	few, all := map[string]int32{"pre": '<', "suf": '|', "mid": '>'}, map[string]int32{"pre": '<', "suf": '|', "mid": '>', "rep": 4, "sep": 5}
	usual, short := Infill{few, 64, -1, 200, false}, Infill{all, 16, 5, 30, false}
	h, r := sees(t), httptest.NewRequest(http.MethodPost, "/infill", nil)
	for _, c := range []struct {
		Infill
		in, want string // "": llama-server refuses it
	}{
		{usual, `"input_prefix":"abc","input_suffix":["d",101],"prompt":"f"`, "[]^<abcf|[d 101]>"},
		{Infill{few, 64, -1, 200, true}, `"input_prefix":"abc","input_suffix":"d","prompt":5`, "[]^|d<abc>"},
		{usual, `"input_prefix":"a","input_suffix":"","input_extra":[{"text":"x"}]`, "[\n\n--- snippet ---\n\n x]^<a|>"},
		{Infill{all, 64, -1, 200, false}, `"input_prefix":"a","input_suffix":"","input_extra":[{"text":"x","filename":"n"},{"text":"y"}]`, "[4 myproject\n 5 n\n x 5 tmp\n y 5 filename\n]^<a|>"},
		{short, `"input_prefix":"0123456789abcdef","input_suffix":"uvw"`, "me\n]^<456789abcdef|uv>"},
		{short, `"input_prefix":"","input_suffix":"uvw","prompt":"xyz"`, "me\n]^<xyz|>"},
		{Infill{}, `"input_prefix":"a","input_suffix":""`, ""}, {usual, `"input_suffix":""`, ""}, {usual, `"input_prefix":"","input_suffix":"","input_extra":{}`, ""},
		{usual, `"input_prefix":"","input_suffix":"","input_extra":[5]`, ""}, {usual, `"input_prefix":"","input_suffix":"","input_extra":[{"text":"","filename":5}]`, ""},
	} {
		h.Infill = c.Infill
		p, err := h.understand(r, []byte("{"+c.in+"}"), prompts["/infill"])
		require.Equal(t, c.want == "", err != nil, c.in)
		require.True(t, err != nil || c.want == string(p.Tokens), c.want)
	}
}

// TestTheEndOfAnAnswer is found in pieces of any size, and only if all of it came. The client of a
// stream may go away before the end of the connection comes.
func TestTheEndOfAnAnswer(t *testing.T) {
	const timings = `"timings":{"cache_n":5,"prompt_n":6,"predicted_n":7,"prompt_ms":1.5}`
	want := &llamatier.Answer{Cached: 5, Processed: 6, Generated: 7, Took: 1500 * time.Microsecond}
	long := strings.Repeat(`data: {"content":"say \"timings\":{} again"}`+"\n\n", 5000)
	done := long + `data: {"stop":true,` + timings + "}\n\ndata: [DONE]\n\n"
	native := long + `data: {"stop":true,"prompt":"` + strings.Repeat("many words ", 5000) + `","stop_type":"limit",` + timings + "}\n\n"
	ends := []string{done, native}
	for text, want := range map[string]*llamatier.Answer{
		`{"content":"x",` + timings + `,"stop":true}`: want,
		done: want, native: want, long: nil, "": nil,
		`{"content":"x","stop_type":"limit",` + timings + `}`: want,

		// Accounts of answers that went on: somebody has stopped one, and one has failed.
		long + `data: {"stop":false,"content":"\"stop_type\":",` + timings + "}\n\n":                nil,
		long + `data: {"stop":false,` + timings + "}\n\n" + `data: {"error":{"code":500}}` + "\n\n": nil,
		`{"error":{"code":400}}`:           nil,
		`{"timings":{"cache_n":5}}`:        nil,
		`{"timings":{"cache_n":5,"prompt_`: nil,
	} {
		for _, size := range []int{1, 7, 1 << 10, 1 << 20} {
			if size == 1 && len(text) > 1<<12 {
				continue
			}
			var e end
			require.Equal(t, text, readAll(t, &pieces{hearing(&e, text), size}))
			require.Equal(t, want, e.answer())

			var broken end
			_, _ = io.CopyN(io.Discard, &pieces{hearing(&broken, text), size}, int64(len(text)))
			switch {
			case slices.Contains(ends, text):
				require.Equal(t, want, broken.answer())
			case !broken.over:
				require.Nil(t, broken.answer(), "the engine may have more to say")
			}
			var cut end
			_, _ = io.CopyN(io.Discard, &pieces{hearing(&cut, text), size}, int64(len(text)-1))
			require.Nil(t, cut.answer(), "a byte is missing")
		}
	}
}

// pieces reads at most size bytes at a time.
type pieces struct {
	io.Reader
	size int
}

func (p *pieces) Read(b []byte) (int, error) { return p.Reader.Read(b[:min(len(b), p.size)]) }

// hearing is a text as an answer that passes.
func hearing(e *end, text string) io.ReadCloser {
	e.ReadCloser = io.NopCloser(strings.NewReader(text))
	return e
}

// understand finds a request's prompt and the prompt's tokens.
func (h *Handler) understand(r *http.Request, body []byte, a api) (*prompt, error) {
	p, err := readPrompt(r, body, a)
	if err != nil {
		return nil, err
	}
	return p, h.find(r.Context(), p, body)
}
