package proxy

import (
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

	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier"
)

// TestGoesOn: a request goes on with another one if it says the same, and little more.
func TestGoesOn(t *testing.T) {
	const chat, plain = "/v1/chat/completions", "/completion"
	first := `{"model":"m","messages":[{"role":"user","content":"a"}]}`
	long := strings.Repeat("x", grownMax)
	for _, c := range []struct {
		path, last, next string
		want             bool
	}{
		{chat, first, first, true},
		{chat, first, `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"model":"m"}`, true},
		{chat, `{"model":"m", "messages": [ {"role":"user","content":"a"} ]}`, `{"messages": [ {"role":"user","content":"a"} , {} ] ,"model":"m"}`, true},
		{chat, first, `{"model":"n","messages":[{"role":"user","content":"a"}]}`, false},
		{chat, first, `{"model":"m","messages":[{"role":"user","content":"a"}],"tools":[]}`, false},
		{chat, first, `{"model":"m","messages":[{"role":"user","content":"b"}]}`, false},
		{chat, first, `{"model":"m","messages":[]}`, false},
		{chat, first, `{"model":"m","messages":[{"role":"user","content":"a"},{"role":"user","content":"` + long + `"}]}`, false},
		{"/v1/messages", `{"system":"s","messages":[{}]}`, `{"system":"s","messages":[{},{}]}`, true},
		{"/v1/messages", `{"system":"s","messages":[{}]}`, `{"system":"t","messages":[{},{}]}`, false},
		{"/v1/responses", `{"input":"a"}`, `{"input":"ab"}`, true},
		{"/v1/responses", `{"input":[{}]}`, `{"input":[{},{}]}`, true},
		{plain, `{"prompt":"a\""}`, `{"prompt":"a\" b"}`, true},
		{plain, `{"prompt":"a"}`, `{"prompt":"b"}`, false},
		{plain, `{"prompt":"a"}`, `{"prompt":["a",1]}`, false},
	} {
		read := func(body string) text {
			var in members
			require.NoError(t, json.Unmarshal([]byte(body), &in))
			return textOf(c.path, in)
		}
		last := read(c.last)
		require.NotEmpty(t, last.said)
		require.Equal(t, c.want, newTalk(last, llamatier.Served{}).goesOn(read(c.next)), "%s, then %s", c.last, c.next)
	}
	for path, body := range map[string]string{plain: `{"prompt":[1,2]}`, chat: `{"prompt":"a"}`, "/completions": `{"prompt":{"prompt_string":"a"}}`} {
		var in members
		require.NoError(t, json.Unmarshal([]byte(body), &in))
		require.Empty(t, textOf(path, in).said, body)
	}
}

// TestAChatThatGoesOnIsNotAskedForFirst: llama-server gets the request before it has made a prompt of it
// for us. What it makes then is stored.
func TestAChatThatGoesOnIsNotAskedForFirst(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	chats := 0
	sent := make(chan struct{}, 9) // of a chat
	e := listen(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		hot := chats > 0
		asked = append(asked, r.URL.Path)
		mu.Unlock()
		switch r.URL.Path {
		case "/slots":
			_, _ = io.WriteString(w, `[{"is_processing":false,"n_ctx":4000,"n_prompt_tokens":300}]`)
		case "/metrics":
			_, _ = io.WriteString(w, "llamacpp:tokens_predicted_total 1\n")
		case "/apply-template":
			if hot {
				select {
				case <-sent:
				case <-time.After(20 * time.Second):
					t.Error("the chat was not sent before")
				}
			}
			_, _ = w.Write([]byte(`{"prompt":"p"}`))
		case "/tokenize":
			tokens := make([]int32, 200+10*len(strings.Split(string(body), "role")))
			_ = json.NewEncoder(w).Encode(map[string]any{"tokens": tokens})
		case "/v1/chat/completions":
			mu.Lock()
			chats++
			mu.Unlock()
			sent <- struct{}{}
			require.Contains(t, string(body), `"id_slot":0`)
			_, _ = fmt.Fprint(w, `{"timings":{"cache_n":0,"prompt_n":210,"predicted_n":1,"prompt_ms":1}}`)
		}
	})
	yes, log := func() bool { return true }, slog.New(slog.DiscardHandler)
	h := New(e, Ours{}, State{Listening: yes, Ready: yes}, log)
	tier := llamatier.New(llamatier.Options{Engine: e, Shape: &llamastate.Shape{}, Slots: 1, Context: 4000, Files: newFiles(t), Store: noPages{}, Idle: time.Hour, Log: log})
	h.Use(tier)
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	for turn := range 4 {
		body := `{"messages":[{"role":"user"}` + strings.Repeat(`,{"role":"user"}`, turn) + `]}`
		res, err := http.Post(s.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, res.Body)
		require.NoError(t, err)
		res.Body.Close()
		if turn == 0 {
			<-sent
		}
		require.Eventually(t, func() bool { return !tier.Slots()[0].Busy }, 20*time.Second, time.Millisecond)
	}
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, 4, chats)
	require.Contains(t, asked, "/tokenize")
}
