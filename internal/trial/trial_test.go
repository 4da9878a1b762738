package trial

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// fake is an Ollama with two models. An answer of a prompt that it has seen has cached tokens, while
// keeps says so. The first answer of a loaded model ends otherwise: its prompt is computed in other batches.
type fake struct {
	keeps    bool
	old      bool   // it does not say how many tokens were cached
	answer   string // in place of a stream
	loaded   bool
	seen     map[string]bool
	contexts []int
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Model    string
		Messages []struct{ Content string }
		Options  struct {
			Window int `json:"num_ctx"`
		}
		KeepAlive any `json:"keep_alive"`
	}
	_ = json.NewDecoder(r.Body).Decode(&in)
	switch r.URL.Path {
	case "/api/tags":
		fmt.Fprint(w, `{"models":[{"name":"cloud:latest","size":0,"remote_host":"https://ollama.com"},{"name":"large:latest","size":9},{"name":"embed:latest","size":1},{"name":"small:1b","size":2}]}`)
	case "/api/show":
		switch in.Model {
		case "embed:latest":
			fmt.Fprint(w, `{"capabilities":["embedding"]}`)
		case "cloud":
			fmt.Fprint(w, `{"remote_host":"https://ollama.com"}`)
		case "small:1b", "large":
			fmt.Fprint(w, `{"capabilities":["completion"],"model_info":{"llama.context_length":2048}}`)
		default:
			http.Error(w, `{"error":"model \"none\" not found"}`, http.StatusNotFound)
		}
	case "/api/ps":
		if f.loaded {
			fmt.Fprint(w, `{"models":[{"name":"small:1b"}]}`)
		} else {
			fmt.Fprint(w, `{"models":[]}`)
		}
	case "/api/generate":
		f.loaded = false
		if !f.keeps {
			clear(f.seen)
		}
		fmt.Fprint(w, `{}`)
	case "/api/chat":
		f.contexts = append(f.contexts, in.Options.Window)
		text := in.Messages[0].Content
		cached := 0
		if f.seen[text] {
			cached = 990
		}
		end := "."
		if !f.loaded {
			end = "!"
		}
		f.seen[text], f.loaded = true, true
		switch {
		case f.answer != "":
			fmt.Fprint(w, f.answer)
		case f.old:
			fmt.Fprintf(w, "{\"message\":{\"content\":\"Yes.\"}}\n{\"done\":true,\"prompt_eval_count\":1000}\n")
		default:
			fmt.Fprintf(w, "{\"message\":{\"thinking\":\"Hm. \"}}\n{\"message\":{\"content\":\"Yes%s\"}}\n{\"done\":true,\"prompt_eval_count\":1000,\"prompt_eval_cached_count\":%d}\n", end, cached)
		}
	}
}

// step runs a step.
func step(_ string, do func() error) error { return do() }

func try(t *testing.T, f *fake, model string) (Result, error) {
	f.seen = map[string]bool{}
	s := httptest.NewServer(f)
	defer s.Close()
	o := &Ollama{URL: s.URL, HTTP: s.Client()}
	if err := o.Choose(t.Context(), model); err != nil {
		return Result{}, err
	}
	return Run(t.Context(), o, step)
}

func TestRun(t *testing.T) {
	for _, keeps := range []bool{true, false} {
		f := &fake{keeps: keeps}
		r, err := try(t, f, "")
		require.NoError(t, err)
		require.Equal(t, "small:1b", r.Model, "the smallest that answers")
		require.Equal(t, "Hm. Yes.", r.Said)
		require.Equal(t, keeps, r.Restored())
		require.Equal(t, []int{2048, 2048, 2048, 2048, 2048}, f.contexts)
		require.True(t, r.Rows[1].Same)
		require.True(t, r.Rows[2].Same)
		require.Equal(t, []string{Cold, Slot, Unloaded}, []string{r.Rows[0].Situation, r.Rows[1].Situation, r.Rows[2].Situation})
		require.Equal(t, 990, *r.Rows[1].Reused)
	}
	r, err := try(t, &fake{old: true}, "large")
	require.NoError(t, err)
	require.Equal(t, "large", r.Model)
	require.Nil(t, r.Rows[2].Reused)
}

// TestRestoredByTime: an Ollama before v0.34 does not count cached tokens.
func TestRestoredByTime(t *testing.T) {
	require.True(t, Result{Rows: []Row{{Answer: Answer{First: 10}}, {Answer: Answer{First: 1}}}}.Restored())
	require.False(t, Result{Rows: []Row{{Answer: Answer{First: 10}}, {Answer: Answer{First: 9}}}}.Restored())
}

func TestErrors(t *testing.T) {
	for want, c := range map[string]struct{ model, answer string }{
		`ask Ollama for /api/show: 404 Not Found: model "none" not found; ollama list shows the models that you have`: {model: "none"},
		"cloud runs at https://ollama.com, not here":                                                                  {model: "cloud"},
		"broke off: unexpected EOF":                    {answer: "{\"message\":{}}\n"},
		"read the answer of Ollama: no room":           {answer: "{\"error\":\"no room\"}\n"},
		"read the answer of Ollama: invalid character": {answer: "<html>\n"},
	} {
		_, err := try(t, &fake{answer: c.answer}, c.model)
		require.ErrorContains(t, err, want)
	}

	// What keeps Ollama from telling of its models is no want of models.
	ctx, cancel := context.WithCancel(t.Context())
	shows := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/tags" {
			fmt.Fprint(w, `{"models":[{"name":"one"}]}`)
			return
		}
		if shows++; shows > 1 {
			cancel()
		}
		http.Error(w, `{"error":"disk failed"}`, http.StatusInternalServerError)
	}))
	o := &Ollama{URL: s.URL, HTTP: s.Client()}
	require.ErrorContains(t, o.Choose(ctx, ""), "500 Internal Server Error: disk failed")
	require.ErrorIs(t, o.Choose(ctx, ""), context.Canceled)
	s.Close()
	err := (&Ollama{URL: s.URL, HTTP: http.DefaultClient}).Choose(t.Context(), "")
	require.ErrorContains(t, err, "no Ollama answers at "+s.URL)
	require.ErrorContains(t, err, Install)
}
