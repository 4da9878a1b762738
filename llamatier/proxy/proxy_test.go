package proxy

import (
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/llamatier"
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

// before returns a server before an engine, without a Tier.
func before(t *testing.T, e *llamatier.Engine, ready bool) *httptest.Server {
	h := New(e, Ours{}, func() bool { return ready }, func() *llamatier.Tier { return nil }, slog.New(slog.DiscardHandler))
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func get(t *testing.T, url string) (int, string) {
	res, err := http.Get(url)
	require.NoError(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(b)
}

// TestAnEngineThatCannotBeReachedIsLoading, as a program that waits for it expects.
func TestAnEngineThatCannotBeReachedIsLoading(t *testing.T) {
	s := before(t, llamatier.Dial(filepath.Join(t.TempDir(), "none.sock")), true)
	status, body := get(t, s.URL+"/health")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.JSONEq(t, `{"error":{"message":"Loading model","type":"unavailable_error","code":503}}`, body)
}

// TestHealthWaitsForTheTier: the first prompt must not come before the engine was looked at.
func TestHealthWaitsForTheTier(t *testing.T) {
	e := listen(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, `{"status":"ok"}`) })
	status, _ := get(t, before(t, e, false).URL+"/health")
	require.Equal(t, http.StatusServiceUnavailable, status)
	status, body := get(t, before(t, e, true).URL+"/health")
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
	s := before(t, e, true)
	req, err := http.NewRequest(http.MethodPost, s.URL+"/some/path?a=1&b=%20", strings.NewReader("{ \"x\" :1}"))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer key")
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	res.Body.Close()
	require.Equal(t, http.StatusTeapot, res.StatusCode)
	require.Equal(t, "5", res.Header.Get("X-Answer"))
	require.Equal(t, "/some/path?a=1&b=%20", got.URL.String())
	require.Equal(t, "Bearer key", got.Header.Get("Authorization"))
	require.Equal(t, "{ \"x\" :1}", body)
}

// TestUnderstanding: the prompts that get a slot, and the others, which pass through.
func TestUnderstanding(t *testing.T) {
	e := listen(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/apply-template":
			_, _ = io.WriteString(w, `{"prompt":"chat"}`)
		case "/tokenize":
			var in struct{ Content string }
			_ = json.NewDecoder(r.Body).Decode(&in)
			_ = json.NewEncoder(w).Encode(map[string]any{"tokens": []int{len(in.Content)}})
		}
	})
	h := New(e, Ours{}, nil, nil, slog.New(slog.DiscardHandler))
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	for body, want := range map[string]llamatier.Request{
		`{"prompt":"four"}`:                             {Tokens: []int32{4}, Slot: -1},
		` {"prompt": [1,2,3], "n_predict":5}`:           {Tokens: []int32{1, 2, 3}, Slot: -1},
		`{"prompt":"four","id_slot":2}`:                 {Tokens: []int32{4}, Slot: 2},
		`{"prompt":"four","id_slot":-1}`:                {Tokens: []int32{4}, Slot: -1},
		`{"prompt":"four","lora":[{"id":0}],"LORA":[]}`: {Tokens: []int32{4}, Slot: -1, Private: true},
		`{"prompt":"four","ID_SLOT":1}`:                 {Tokens: []int32{4}, Slot: -1},
		`{"prompt":"four","kv_store":false}`:            {Tokens: []int32{4}, Slot: -1, Private: true},
		`{"prompt":"four","lora":[{"id":0}]}`:           {Tokens: []int32{4}, Slot: -1, Private: true},
		`{"prompt":"four","lora":[],"n":1}`:             {Tokens: []int32{4}, Slot: -1},
		`{"prompt":"four","cache_prompt":true}`:         {Tokens: []int32{4}, Slot: -1},
		`{"prompt":"four","n_cache_reuse":0,"n":null}`:  {Tokens: []int32{4}, Slot: -1},
	} {
		p, err := h.understand(r, []byte(body), false)
		require.NoError(t, err, body)
		require.Equal(t, want, p.Request, body)
		var pinned struct {
			Slot int `json:"id_slot"`
		}
		require.NoError(t, json.Unmarshal(p.pinned([]byte(body), 7), &pinned), body)
		if want.Slot < 0 && !p.named {
			require.Equal(t, 7, pinned.Slot, body)
		}
	}
	p, err := h.understand(r, []byte(`{"messages":[{"role":"user","content":"hi"}]}`), true)
	require.NoError(t, err)
	require.Equal(t, []int32{4}, p.Tokens)

	for _, body := range []string{
		``, `[]`, `{}`, `null`, `{"prompt":5}`, `{"prompt":[]}`, `{"prompt":["a","b"]}`, `{"prompt":[1,"a"]}`, `{"prompt":[[1],[2]]}`,
		`{"prompt":{"prompt_string":"a","multimodal_data":["b"]}}`, `{"prompt":"four","n":2}`, `{"prompt":"four","n_cmpl":3}`,
		`{"prompt":"four","cache_prompt":false}`, `{"prompt":"four","n_cache_reuse":256}`, `{"prompt":"four"`,
	} {
		_, err := h.understand(r, []byte(body), false)
		require.Error(t, err, body)
	}
	_, err = h.understand(r, []byte(`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:"}}]}]}`), true)
	require.Error(t, err)
}

// TestTheEndOfAnAnswer is found in pieces of any size, and only if all of it came.
func TestTheEndOfAnAnswer(t *testing.T) {
	const timings = `"timings":{"cache_n":5,"prompt_n":6,"predicted_n":7,"prompt_ms":1.5}`
	want := &llamatier.Answer{Cached: 5, Processed: 6, Generated: 7, Took: 1500 * time.Microsecond}
	long := strings.Repeat(`data: {"content":"say \"timings\":{} again"}`+"\n\n", 5000)
	for text, want := range map[string]*llamatier.Answer{
		`{"content":"x",` + timings + `,"stop":true}`:                    want,
		long + `data: {"stop":true,` + timings + "}\n\ndata: [DONE]\n\n": want,
		long: nil, "": nil,
		`{"error":{"code":400}}`:           nil,
		`{"timings":{"cache_n":5}}`:        nil,
		`{"timings":{"cache_n":5,"prompt_`: nil,
	} {
		for _, size := range []int{1, 7, 1 << 10, 1 << 20} {
			if size == 1 && len(text) > 1<<12 {
				continue
			}
			var e end
			b, err := io.ReadAll(io.NopCloser(struct{ io.Reader }{&pieces{e.hear(io.NopCloser(strings.NewReader(text))), size}}))
			require.NoError(t, err)
			require.Equal(t, text, string(b))
			require.Equal(t, want, e.answer())

			var broken end
			_, _ = io.CopyN(io.Discard, &pieces{broken.hear(io.NopCloser(strings.NewReader(text))), size}, int64(len(text)))
			if !broken.over {
				require.Nil(t, broken.answer(), "the engine may have more to say")
			}
		}
	}
}

// pieces reads at most size bytes at a time.
type pieces struct {
	io.Reader
	size int
}

func (p *pieces) Read(b []byte) (int, error) { return p.Reader.Read(b[:min(len(b), p.size)]) }
