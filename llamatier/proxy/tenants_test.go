package proxy

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/llamatier"
)

// listed are the keys of two namespaces.
var listed = map[[32]byte]string{sha256.Sum256([]byte("red-1")): "red", sha256.Sum256([]byte("red-2")): "red", sha256.Sum256([]byte("blue")): "blue"}

// TestTenantsOfRequests: the key is read as llama-server reads it, and the salt wherever JSON has it.
func TestTenantsOfRequests(t *testing.T) {
	h := loaded(llamatier.Dial(""), Ours{Tenants: listed}, slog.New(slog.DiscardHandler))
	open := loaded(llamatier.Dial(""), Ours{}, slog.New(slog.DiscardHandler))
	tenant := func(h *Handler, header http.Header, body string) llamatier.Tenant {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header = header
		of, err := h.tenant(r, []byte(body))
		require.NoError(t, err, body)
		return of
	}
	bearer := func(key string) http.Header { return http.Header{"Authorization": {"Bearer " + key}} }
	none, red := llamatier.Tenant{}, tenantOf("namespace red", "")
	for _, c := range []struct {
		header http.Header
		body   string
		want   llamatier.Tenant
	}{
		{http.Header{}, `{}`, none},
		{http.Header{"Authorization": {""}}, `{"cache_salt":null}`, none},
		{bearer("red-1"), `{}`, red},
		{bearer("red-2"), "no JSON", red},
		{http.Header{"Authorization": {"red-1"}}, ``, red},
		{http.Header{"X-Api-Key": {"red-1"}}, ``, red},
		{http.Header{"X-Api-Key": {"Bearer red-1"}}, ``, red},
		{http.Header{"Authorization": {"Bearer blue"}, "X-Api-Key": {"red-1"}}, ``, tenantOf("namespace blue", "")},
		{bearer("red-1"), `{"messages":[{"cache_salt":"m"}],"cache_salt":"s"}`, tenantOf("namespace red", "s")},
		{http.Header{}, `{"cache_salt":"s","x":"cache_salt"}`, tenantOf("", "s")},
		{http.Header{}, `{"cache\u005fsalt":"a","\u0063ache_salt":"\u0073"}`, tenantOf("", "s")},
		{http.Header{}, `{"cache_salt":"s","cache_salt":null}`, none},
	} {
		require.Equal(t, c.want, tenant(h, c.header, c.body), "%v %s", c.header, c.body)
	}
	seen := map[llamatier.Tenant]bool{none: true}
	for _, header := range []http.Header{{}, bearer("red-1"), bearer("blue"), bearer("red"), bearer("namespace red"), bearer("\nred-1"), {"Authorization": {"red-1", "red-1"}}, {"Authorization": {"bearer red-1"}}} {
		for _, body := range []string{`{}`, `{"cache_salt":"red"}`, `{"cache_salt":"namespace red"}`} {
			of := tenant(h, header, body)
			require.Equal(t, of == none, len(header) == 0 && body == `{}`)
			require.True(t, of == none || !seen[of], "%v %s", header, body)
			seen[of] = true
		}
	}
	require.Equal(t, none, tenant(open, bearer("red-1"), `{}`), "without a file, keys separate nothing")
	require.Equal(t, tenantOf("", "s"), tenant(open, bearer("red-1"), `{"cache_salt":"s"}`))
}

// letters is an engine whose tokens are bytes, and which tells how many of a prompt it knew.
type letters struct {
	mu    sync.Mutex
	held  []string
	tasks []int
	got   []string // the bodies of prompts
	hang  func()   // called while a prompt is computed; nil for nothing
}

func (l *letters) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return // llama-server drops it
	}
	var in struct {
		Content  string
		Prompt   json.RawMessage
		Slot     *int `json:"id_slot"`
		Messages []struct{ Content string }
	}
	_ = json.Unmarshal(b, &in)
	prompt := stringOf(in.Prompt) + string(numbers(in.Prompt))
	for _, m := range in.Messages {
		prompt += m.Content
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var id int
	switch n, _ := fmt.Sscanf(r.URL.Path, "/slots/%d", &id); {
	case n == 1:
		if r.URL.Query().Get("action") != "erase" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		l.held[id] = ""
		_, _ = io.WriteString(w, "{}")
	case r.URL.Path == "/slots":
		var out []map[string]any
		for i, held := range l.held {
			out = append(out, map[string]any{"is_processing": false, "n_ctx": 40000, "n_prompt_tokens": len(held), "id_task": l.tasks[i]})
		}
		_ = json.NewEncoder(w).Encode(out)
	case r.URL.Path == "/metrics":
		_, _ = io.WriteString(w, "llamacpp:tokens_predicted_total 1\n")
	case r.URL.Path == "/apply-template":
		_ = json.NewEncoder(w).Encode(map[string]string{"prompt": prompt})
	case r.URL.Path == "/tokenize":
		_ = json.NewEncoder(w).Encode(map[string]any{"tokens": []rune(in.Content)})
	default:
		l.got = append(l.got, string(b))
		if hang := l.hang; hang != nil {
			l.mu.Unlock()
			hang()
			l.mu.Lock()
		}
		l.compute(w, prompt, in.Slot)
	}
}

// compute computes a prompt in a slot, or in the one that holds most of it.
func (l *letters) compute(w io.Writer, prompt string, slot *int) {
	chosen, most := 0, -1
	for i, held := range l.held {
		if n := common(held, prompt); slot == nil && n > most || slot != nil && *slot == i {
			chosen, most = i, n
		}
	}
	l.held[chosen] = prompt
	l.tasks[chosen]++
	_, _ = fmt.Fprintf(w, `{"slot":%d,"usage":{"input_tokens":%[3]d,"output_tokens":1,"cache_read_input_tokens":%[2]d},"timings":{"cache_n":%[2]d,"prompt_n":%[3]d,"predicted_n":1,"prompt_ms":1}}`, chosen, most, len(prompt)-most)
}

// common is the number of bytes with which two texts begin.
func common(a, b string) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// letter is a Handler before letters, and its log.
func letter(t *testing.T, slots int, ours Ours) (*letters, *Handler, *lines) {
	l, log := &letters{held: make([]string, slots), tasks: make([]int, slots)}, new(lines)
	e := listen(t, l.ServeHTTP)
	h := loaded(e, ours, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	h.Use(aTier(t, e, slots, h.log))
	return l, h, log
}

// asking sends a prompt of a client with a key and a salt, of which "" is none.
func asking(ctx context.Context, h *Handler, path, key, salt, prompt, more string) *httptest.ResponseRecorder {
	body := fmt.Sprintf(`{"messages":[{"role":"user","content":%q}]%s}`, prompt, more)
	if !prompts[path].chat {
		body = fmt.Sprintf(`{"prompt":%q%s}`, prompt, more)
	}
	if salt != "" {
		body = strings.Replace(body, "{", fmt.Sprintf(`{"cache_salt":%q,`, salt), 1)
	}
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)).WithContext(ctx)
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	w := httptest.NewRecorder()
	defer func() { _ = recover() }() // the connection is given up
	h.ServeHTTP(w, r)
	return w
}

// TestNoAnswerTellsOfOthers: whatever clients with keys and salts send, to any path, at the same time.
func TestNoAnswerTellsOfOthers(t *testing.T) {
	got := 0
	rapid.Check(t, func(rt *rapid.T) {
		l, h, log := letter(t, rapid.IntRange(1, 3).Draw(rt, "slots"), Ours{Tenants: listed})
		asked := map[string][]string{} // by namespace and salt
		for range rapid.IntRange(2, 12).Draw(rt, "steps") {
			var all []func()
			for range rapid.IntRange(1, 3).Draw(rt, "together") {
				key := rapid.SampledFrom([]string{"", "red-1", "red-2", "blue", "secret-1", "secret-2"}).Draw(rt, "key")
				salt := rapid.SampledFrom([]string{"", "", "grain"}).Draw(rt, "salt")
				path := rapid.SampledFrom([]string{"/completion", "/v1/chat/completions", "/v1/messages", "/embedding"}).Draw(rt, "path")
				more := rapid.SampledFrom([]string{"", "", `,"n":2`, `,"kv_store":false`, `,"id_slot":0`, `,"odd":"` + "\x01" + `"`}).Draw(rt, "more")
				prompt := strings.Repeat("shared", rapid.IntRange(0, 20).Draw(rt, "shared")) + rapid.StringMatching(`[xyz]{1,3}`).Draw(rt, "own")
				whose := strings.TrimRight(key, "-12") + " " + salt
				if strings.HasPrefix(key, "secret") {
					whose = key + " " + salt
				}
				asked[whose] = append(asked[whose], prompt)
				number := len(asked[whose]) - 1
				all = append(all, func() {
					w := asking(context.Background(), h, path, key, salt, prompt, more)
					answer := llamatier.ReadAnswer(w.Body.Bytes())
					if answer == nil {
						return
					}
					most := 0
					for i, other := range asked[whose] {
						if i != number {
							most = max(most, common(other, prompt))
						}
					}
					if answer.Cached > most {
						rt.Errorf("%q finds %d of %q at %s, and has asked %d", whose, answer.Cached, prompt, path, most)
					}
				})
			}
			var running sync.WaitGroup
			for _, do := range all {
				running.Add(1)
				go func() {
					defer running.Done()
					do()
				}()
			}
			running.Wait()
		}
		got += len(l.got)
		for _, secret := range []string{"secret-", "grain", "red-", "blue"} {
			require.NotContains(rt, log.String(), secret)
		}
	})
	require.Positive(t, got)
}

// TestAClientThatLeavesInAnySlot: another tenant's request waits, because llama-server may begin its late.
func TestAClientThatLeavesInAnySlot(t *testing.T) {
	l, h, _ := letter(t, 1, Ours{})
	ctx, leave := context.WithCancel(t.Context())
	l.hang = func() { leave() }
	asking(ctx, h, "/embedding", "", "grain", "text", "")
	l.mu.Lock()
	require.Len(t, l.got, 1)
	l.hang = nil
	l.mu.Unlock()
	ctx, leave = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer leave()
	asking(ctx, h, "/completion", "", "", "text", "")
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Len(t, l.got, 1)
}

// TestSaltsThatAreRefused: one that is no text, and one that nobody can read before llama-server does.
func TestSaltsThatAreRefused(t *testing.T) {
	const most = 64 << 10
	l, h, _ := letter(t, 1, Ours{})
	h.bodies.one = most
	url := web(t, h)
	for body, want := range map[string]int{
		`{"prompt":"a","cache_salt":""}`: http.StatusBadRequest, `{"prompt":"a","cache_salt":7}`: http.StatusBadRequest, `{"prompt":"a","cache_salt":["x"]}`: http.StatusBadRequest,
		"\ufeff" + `{"prompt":"a","cache_salt":"x"}`: http.StatusNotImplemented, `{"cache_salt":"x",`: http.StatusNotImplemented,
		`{"cache_salt":"x","prompt":"` + strings.Repeat("x", most) + `"}`: http.StatusNotImplemented,
		`{"prompt":"` + strings.Repeat("x", most) + `","cache_salt":"x"}`: http.StatusNotImplemented,
	} {
		for _, path := range []string{"/completion", "/embedding"} {
			status, answer := post(t, url+path, body)
			require.Equal(t, want, status, "%s %.60s", path, body)
			require.Contains(t, answer, "cache_salt")
		}
	}
	status, _ := post(t, url+"/embedding", strings.Repeat(" ", 5000)+`{"prompt":"a","cache_salt":"x"}`)
	require.Equal(t, http.StatusNotImplemented, status)
	require.Empty(t, l.got)
	status, _ = post(t, url+"/embedding", `{"prompt":"\"cache_salt\"`+strings.Repeat("x", most)+`"}`)
	require.Equal(t, http.StatusOK, status)
	require.Len(t, l.got, 1)
}

// TestBodiesThatAreObjects: spaces before one count, and nothing of a body is lost.
func TestBodiesThatAreObjects(t *testing.T) {
	for body, want := range map[string]bool{`{"a":1}`: true, " \t\r\n{": true, "": false, " ": false, `[{}]`: false, "--form": false, "\v{": false, strings.Repeat(" ", 5000) + "{": false} {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		require.Equal(t, want, isObject(r), "%q", body)
		require.Equal(t, body, readAll(t, r.Body))
	}
}

// TestAnUploadPassesAsItComes, without its end.
func TestAnUploadPassesAsItComes(t *testing.T) {
	came := make(chan struct{})
	e := listen(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadFull(r.Body, make([]byte, len("--form")))
		close(came)
		_, _ = io.Copy(w, r.Body)
	})
	body, upload := io.Pipe()
	go func() {
		_, _ = io.WriteString(upload, "--form")
		select {
		case <-came:
		case <-time.After(time.Minute):
			t.Error("the beginning waits for the end")
		}
		_, _ = io.WriteString(upload, "the rest")
		upload.Close()
	}()
	h := loaded(e, Ours{}, slog.New(slog.DiscardHandler))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/audio/transcriptions", body))
	require.Equal(t, "the rest", w.Body.String())
}

// TestASaltOverTwoReads is found.
func TestASaltOverTwoReads(t *testing.T) {
	const body = `{"a":"b","cache_salt":"x"}`
	for n := 1; n <= len(body); n++ {
		u := &unread{ReadCloser: io.NopCloser(strings.NewReader(body)), names: needed("/completion")}
		var err error
		for p := make([]byte, n); err == nil; {
			_, err = u.Read(p)
		}
		require.ErrorIs(t, err, unreadable(saltMember), n)
	}
}

// TestWhereTenantsAreNotKeptApart they are refused, and those without a key or salt are not.
func TestWhereTenantsAreNotKeptApart(t *testing.T) {
	l := &letters{held: make([]string, 1), tasks: make([]int, 1)}
	e := listen(t, l.ServeHTTP)
	without := loaded(e, Ours{Tenants: listed}, slog.New(slog.DiscardHandler))
	_, shares, _ := letter(t, 1, Ours{Tenants: listed, Shares: "drafts"})
	for _, h := range []*Handler{without, shares} {
		for _, path := range []string{"/completion", "/v1/messages", "/embedding"} {
			require.Equal(t, http.StatusNotImplemented, asking(t.Context(), h, path, "red-1", "", "a", "").Code)
			require.Equal(t, http.StatusNotImplemented, asking(t.Context(), h, path, "", "grain", "a", "").Code)
			require.Equal(t, http.StatusOK, asking(t.Context(), h, path, "", "", "a", "").Code)
		}
	}
}

// TestWithTenantsSlotsAreOff, and conversations are no name under which somebody else reads an answer.
func TestWithTenantsSlotsAreOff(t *testing.T) {
	for name, ours := range map[string]Ours{"file": {Tenants: listed}, "salt": {}} {
		var header http.Header
		l := &letters{held: make([]string, 1), tasks: make([]int, 1)}
		e := listen(t, func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/props":
				_, _ = io.WriteString(w, `{"endpoint_slots":true}`)
			case "/completion":
				header = r.Header
				fallthrough
			default:
				l.ServeHTTP(w, r)
			}
		})
		h := loaded(e, ours, slog.New(slog.DiscardHandler))
		h.Use(aTier(t, e, 1, h.log))
		url := web(t, h)
		if name == "salt" {
			status, _ := get(t, url+"/slots")
			require.Equal(t, http.StatusOK, status)
			post(t, url+"/completion", `{"prompt":"a","cache_salt":"grain"}`)
		}
		status, _ := get(t, url+"/slots")
		require.Equal(t, http.StatusNotImplemented, status, name)
		status, _ = post(t, url+"/slots/0?action=save", `{"filename":"a"}`)
		require.Equal(t, http.StatusNotImplemented, status, name)
		_, props := get(t, url+"/props")
		require.JSONEq(t, `{"endpoint_slots":false}`, props)
		_, _ = send(t, http.MethodPost, url+"/completion", `{"prompt":"a"}`, http.Header{"X-Conversation-Id": {"c"}, "X-Api-Key": {"red-1"}})
		require.NotNil(t, header)
		require.Empty(t, header.Values("X-Conversation-Id"), name)
	}
}

// TestTheEngineGetsTheKeyThatWasJudged: Connection takes no key away, behind which another one would count.
func TestTheEngineGetsTheKeyThatWasJudged(t *testing.T) {
	l := &letters{held: make([]string, 1), tasks: make([]int, 1)}
	e := listen(t, func(w http.ResponseWriter, r *http.Request) {
		if key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "); key == "no" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		l.ServeHTTP(w, r)
	})
	h := loaded(e, Ours{Tenants: listed, Keys: true}, slog.New(slog.DiscardHandler))
	h.Use(aTier(t, e, 1, h.log))
	url := web(t, h)
	require.Equal(t, http.StatusOK, asking(t.Context(), h, "/completion", "blue", "", "secret", "").Code)
	for path, method := range map[string]string{"/completion": http.MethodPost, "/embedding": http.MethodPost, "/slots": http.MethodGet} {
		header := http.Header{"Authorization": {"Bearer no"}, "X-Api-Key": {"red-1"}, "Connection": {"authorization, x-api-key"}}
		status, answer := send(t, method, url+path, `{"prompt":"secret"}`, header)
		require.Equal(t, http.StatusUnauthorized, status, "%s %s", path, answer)
	}
}

// TestATenantsTextsAreItsOwn: what another one has sent makes nothing quicker.
func TestATenantsTextsAreItsOwn(t *testing.T) {
	h, _ := recalling(t, nil, nil)
	text := messages(12, 1)
	_, err := h.texts.tokenize(t.Context(), text, llamatier.Tenant{1})
	require.NoError(t, err)
	for of, want := range map[llamatier.Tenant]int{{1}: len(text), {2}: 0, {}: 0} {
		n, _, _ := h.texts.longest(text, of)
		require.Equal(t, want, n)
	}
	_, err = h.texts.tokenize(t.Context(), text, llamatier.Tenant{})
	require.NoError(t, err)
	require.Len(t, h.texts.known, 2, "one does not take the other's place")
	body := `{"messages":[{"role":"user","content":"a"}]}`
	last := textOf("/v1/chat/completions", object(json.RawMessage(body)))
	next := last
	next.of = llamatier.Tenant{1}
	require.True(t, newTalk(last, llamatier.Served{}).goesOn(last))
	require.False(t, newTalk(last, llamatier.Served{}).goesOn(next))
}
