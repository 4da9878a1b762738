package proxy

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/llamatier"
)

// TestAnEngineThatMakesNoTokens answers prompts still, which pass through.
func TestAnEngineThatMakesNoTokens(t *testing.T) {
	yes := func() bool { return true }
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
		h := New(e, Ours{}, State{Listening: yes, Ready: yes}, slog.New(slog.DiscardHandler))
		h.patience = time.Millisecond
		h.Use(llamatier.New(llamatier.Options{Engine: e, Slots: 1, Context: 1000, Log: slog.New(slog.DiscardHandler)}))
		s := httptest.NewServer(h)
		to := "/completion"
		if strings.Contains(request, "messages") {
			to = "/chat/completions"
		}
		res, err := http.Post(s.URL+to, "application/json", strings.NewReader(request))
		require.NoError(t, err)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		res.Body.Close()
		require.Equal(t, request, string(body), path)
		s.Close()
	}
}
