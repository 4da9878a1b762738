package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/llamatier"
	"github.com/kvtier/kvtier/telemetry"
)

// TestGoesOn: a request goes on with another one if it says the same, and little more.
func TestGoesOn(t *testing.T) {
	const chats, plain = "/v1/chat/completions", "/completion"
	first := `{"model":"m","messages":[{"role":"user","content":"a"}]}`
	long := strings.Repeat("x", grownMax)
	for _, c := range []struct {
		path, last, next string
		want             bool
	}{
		{chats, first, first, true},
		{chats, first, `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"model":"m"}`, true},
		{chats, `{"model":"m", "messages": [ {"role":"user","content":"a"} ]}`, `{"messages": [ {"role":"user","content":"a"} , {} ] ,"model":"m"}`, true},
		{chats, first, `{"model":"n","messages":[{"role":"user","content":"a"}]}`, false},
		{chats, first, `{"model":"m","messages":[{"role":"user","content":"a"}],"tools":[]}`, false},
		{chats, first, `{"model":"m","messages":[{"role":"user","content":"b"}]}`, false},
		{chats, first, `{"model":"m","messages":[]}`, false},
		{chats, first, `{"model":"m","messages":[{"role":"user","content":"a"},{"role":"user","content":"` + long + `"}]}`, false},
		{"/v1/messages", `{"system":"s","messages":[{}]}`, `{"system":"s","messages":[{},{}]}`, true},
		{"/v1/messages", `{"system":"s","messages":[{}]}`, `{"system":"t","messages":[{},{}]}`, false},
		{"/v1/responses", `{"input":"a"}`, `{"input":"ab"}`, true},
		{"/v1/responses", `{"input":[{}]}`, `{"input":[{},{}]}`, true},
		{plain, `{"prompt":"a\""}`, `{"prompt":"a\" b"}`, true},
		{plain, `{"prompt":"a"}`, `{"prompt":"b"}`, false},
		{plain, `{"prompt":"a"}`, `{"prompt":["a",1]}`, false},
		{plain, `{"prompt":[1,2]}`, `{"prompt":[1,2,3]}`, true},
		{plain, `{"prompt":[1,2]}`, `{"prompt":[1,23]}`, false},
		{plain, `{"prompt":[1,2]}`, `{"prompt":[1,2,[3]]}`, false},
	} {
		last := textOf(c.path, object(json.RawMessage(c.last)))
		require.NotEmpty(t, last.said)
		require.Equal(t, c.want, newTalk(last, llamatier.Served{}).goesOn(textOf(c.path, object(json.RawMessage(c.next)))), "%s, then %s", c.last, c.next)
	}
	for path, body := range map[string]string{plain: `{"prompt":["a"]}`, "/v1/completions": `{"prompt":[1,null]}`, chats: `{"prompt":"a"}`, "/completions": `{"prompt":{"prompt_string":"a"}}`} {
		require.Empty(t, textOf(path, object(json.RawMessage(body))).said, body)
	}
}

// chats is an engine that makes a token of each byte of a chat, and the handler before it.
type chats struct {
	t    *testing.T
	url  string
	tier *llamatier.Tier
	h    *Handler

	mu    sync.Mutex
	log   []string
	held  []int
	tasks []int
	hook  func(path, body string, w http.ResponseWriter) bool // true: it has answered
}

func newChats(t *testing.T, slots int) *chats {
	c := &chats{t: t, held: make([]int, slots), tasks: make([]int, slots)}
	e := listen(t, c.answer)
	log := slog.New(slog.DiscardHandler)
	c.h, c.tier = loaded(e, Ours{}, log), aTier(t, e, slots, log)
	c.h.Use(c.tier)
	c.url = web(t, c.h)
	return c
}

func (c *chats) answer(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	c.mu.Lock()
	c.log = append(c.log, r.URL.RequestURI())
	hook := c.hook
	c.mu.Unlock()
	if hook != nil && hook(r.URL.Path, string(b), w) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r.URL.Path {
	case "/slots":
		var out []map[string]any
		for i, held := range c.held {
			out = append(out, map[string]any{"is_processing": false, "n_ctx": 40000, "n_prompt_tokens": held, "id_task": c.tasks[i]})
		}
		_ = json.NewEncoder(w).Encode(out)
	case "/metrics":
		_, _ = io.WriteString(w, "llamacpp:tokens_predicted_total 1\n")
	case "/apply-template":
		_ = json.NewEncoder(w).Encode(map[string]string{"prompt": string(b)})
	case "/tokenize":
		var in struct{ Content string }
		_ = json.Unmarshal(b, &in)
		_ = json.NewEncoder(w).Encode(map[string]any{"tokens": []rune(in.Content)})
	case "/v1/chat/completions":
		var in struct {
			Slot int `json:"id_slot"`
		}
		_ = json.Unmarshal(b, &in)
		c.held[in.Slot] = len(b)
		c.log = append(c.log, fmt.Sprintf("chat in %d", in.Slot))
		_, _ = fmt.Fprintf(w, `{"timings":{"cache_n":0,"prompt_n":%d,"predicted_n":1,"prompt_ms":1}}`, len(b))
	default:
		_, _ = io.WriteString(w, "{}")
	}
}

// on has the next requests go to a hook first.
func (c *chats) on(hook func(path, body string, w http.ResponseWriter) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hook = hook
}

// seen returns what the engine has got since it was asked last.
func (c *chats) seen() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	log := c.log
	c.log = nil
	return log
}

// send sends a chat, and returns the status; 0 without an answer.
func (c *chats) send(ctx context.Context, body string) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/chat/completions", strings.NewReader(body))
	require.NoError(c.t, err)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

// says sends a chat that is answered, and waits until no slot is busy.
func (c *chats) says(body string) {
	c.t.Helper()
	require.Equal(c.t, http.StatusOK, c.send(c.t.Context(), body))
	c.free()
}

// free waits until no slot is busy.
func (c *chats) free() {
	busy := func(s telemetry.Slot) bool { return s.Busy }
	require.Eventually(c.t, func() bool { return !slices.ContainsFunc(c.tier.Slots(), busy) }, 20*time.Second, time.Millisecond)
}

// chat is a body with some messages.
func chat(messages ...string) string {
	body := strings.Repeat("x", 200)
	for _, m := range messages {
		body += `"},{"role":"user","content":"` + m
	}
	return `{"messages":[{"role":"user","content":"` + body + `"}]}`
}

// TestAChatThatGoesOnIsNotAskedForFirst: llama-server gets the request before it has made a prompt of it
// for us.
func TestAChatThatGoesOnIsNotAskedForFirst(t *testing.T) {
	c := newChats(t, 1)
	c.says(chat())
	require.Equal(t, "/apply-template", c.seen()[0])
	for _, next := range []string{chat("a"), chat("a", "b"), chat("a", "b")} {
		c.says(next)
		seen := c.seen()
		require.Less(t, slices.Index(seen, "chat in 0"), slices.Index(seen, "/apply-template"), seen)
		require.Contains(t, seen, "/tokenize")
	}
}

// TestARefusedHotChat leaves its slot as it was.
func TestARefusedHotChat(t *testing.T) {
	c := newChats(t, 1)
	for range 2 {
		c.says(chat())
	}
	c.on(func(path, body string, w http.ResponseWriter) bool {
		if path == "/apply-template" || path == "/v1/chat/completions" {
			http.Error(w, `{"error":{"code":400}}`, http.StatusBadRequest)
			return true
		}
		return false
	})
	require.Equal(t, http.StatusBadRequest, c.send(t.Context(), chat("bad")))
	c.free()
	c.on(nil)
	c.seen()
	c.says(chat("good"))
	require.NotContains(t, c.seen(), "/slots/0?action=erase")
}

// TestAChatWaitsForTheTokensOfTheLast, and goes on in the same slot.
func TestAChatWaitsForTheTokensOfTheLast(t *testing.T) {
	c := newChats(t, 2)
	c.says(chat())
	found := make(chan struct{})
	c.on(func(path, body string, w http.ResponseWriter) bool {
		if path == "/apply-template" && !strings.Contains(body, "two") {
			<-found
		}
		return false
	})
	require.Equal(t, http.StatusOK, c.send(t.Context(), chat("one")))
	sent := make(chan int)
	go func() { sent <- c.send(t.Context(), chat("one", "two")) }()
	close(found)
	require.Equal(t, http.StatusOK, <-sent)
	c.free()
	require.NotContains(t, c.seen(), "chat in 1")
}

// TestASlotIsFreeBeforeTheClientKnows that its answer is over: what it asks for next takes no other slot, nor
// one of which something is not saved.
func TestASlotIsFreeBeforeTheClientKnows(t *testing.T) {
	const account = `"timings":{"cache_n":0,"prompt_n":200,"predicted_n":1,"prompt_ms":1}`
	for _, last := range []string{"data: {\"choices\":[]," + account + "}\n\ndata: [DONE]\n\n", "{" + account + "}"} {
		c, ended := newChats(t, 1), make(chan struct{})
		c.on(func(path, _ string, w http.ResponseWriter) bool {
			if path != "/v1/chat/completions" {
				return false
			}
			if strings.HasPrefix(last, "{") {
				w.Header().Set("Content-Length", strconv.Itoa(len(last)))
			}
			_, _ = io.WriteString(w, last)
			_ = http.NewResponseController(w).Flush()
			<-ended
			return true
		})
		res, err := http.Post(c.url+"/v1/chat/completions", "application/json", strings.NewReader(chat()))
		require.NoError(t, err)
		_, err = io.ReadFull(res.Body, make([]byte, len(last)))
		busy := c.tier.Slots()[0].Busy
		close(ended)
		require.NoError(t, errors.Join(err, res.Body.Close()))
		require.False(t, busy)
	}
}

// TestASlotWhoseTokensAreFoundOut is saved before a request of which nothing is known, which waits for them.
func TestASlotWhoseTokensAreFoundOut(t *testing.T) {
	c, found, asked := newChats(t, 1), make(chan struct{}), make(chan struct{})
	c.says(chat())
	c.on(func(path, _ string, _ http.ResponseWriter) bool {
		if path == "/apply-template" {
			close(asked)
			<-found
		}
		return false
	})
	require.Equal(t, http.StatusOK, c.send(t.Context(), chat("one")))
	<-asked
	c.seen()
	time.AfterFunc(10*time.Millisecond, func() { close(found) })
	_, _ = post(t, c.url+"/other", "{}")
	seen := c.seen()
	require.Contains(t, seen, "/slots/0?action=save")
	require.Less(t, slices.Index(seen, "/slots/0?action=save"), slices.Index(seen, "/other"))
}

// TestMostOfAChat: of two slots that hold a chat, the one with more of it goes on.
func TestMostOfAChat(t *testing.T) {
	h := &Handler{}
	read := func(body string) text { return textOf("/v1/chat/completions", object(json.RawMessage(body))) }
	h.talks = []*talk{newTalk(read(chat("a", "b")), llamatier.Served{Slot: 1}), newTalk(read(chat("a")), llamatier.Served{Slot: 2})}
	require.Same(t, h.talks[0], h.lastOf(read(chat("a", "b", "c"))))
	require.Same(t, h.talks[1], h.lastOf(read(chat("a", "c"))))
	require.Nil(t, h.lastOf(read(chat("c"))))
	h.forget(h.talks[0])
	require.Len(t, h.talks, 1)
}

// TestAFlushWhileTokensAreFoundOut saves the other slots.
func TestAFlushWhileTokensAreFoundOut(t *testing.T) {
	c := newChats(t, 2)
	c.says(chat())
	c.says(strings.ReplaceAll(chat(), "x", strings.Repeat("y", 20)))
	gone, cancel := context.WithCancel(t.Context())
	stop := make(chan struct{})
	var sent atomic.Bool
	c.on(func(path, body string, w http.ResponseWriter) bool {
		if path == "/v1/chat/completions" {
			sent.Store(true)
			cancel()
			<-stop
		}
		if path == "/apply-template" && sent.Load() {
			<-stop
		}
		return false
	})
	require.Zero(t, c.send(gone, chat("a")))
	c.seen()
	within, end := context.WithTimeout(t.Context(), 20*time.Second)
	defer end()
	c.tier.Flush(within)
	close(stop)
	require.Contains(t, c.seen(), "/slots/1?action=save")
}
