package llamae2e

import (
	"maps"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// TestAnUnknownFormOfChats does no harm: a stock llama-server dies when somebody asks for its slots, as the daemon does
// all the time.
func TestAnUnknownFormOfChats(t *testing.T) {
	o := llamatest.Options{Model: aModel(t, testmodel.Shape{Arch: "llama"}), Args: strings.Fields("-c 4096 -np 2 -t 1")}
	stock := start(t, o)
	o.Root = filepath.Join(t.TempDir(), "pages")
	s := start(t, o)
	prompt := map[string]any{"prompt": someTokens(1, 300), "max_tokens": 4}
	several := map[string]any{"prompt": []string{"one", "two"}, "max_tokens": 4}
	chat := map[string]any{"messages": []map[string]string{{"role": "user", "content": strings.Repeat("Is there a bug? ", 40)}}, "max_tokens": 4}
	for _, ask := range []struct {
		path string
		in   map[string]any
		n    int // answers
	}{
		{"/completion", prompt, 1}, {"/completion", prompt, 2}, {"/completion", several, 1}, {"/v1/completions", prompt, 1}, {"/v1/completions", prompt, 2},
		{"/v1/chat/completions", chat, 1}, {"/v1/chat/completions", chat, 2},
	} {
		for form, refused := range map[any]bool{99: false, -1: false, "Content-only": true} {
			for _, stream := range []bool{false, true} {
				in := maps.Clone(ask.in)
				in["n"], in["stream"], in["chat_format"] = ask.n, stream, form
				want, of := stock.post(ask.path, in)
				got, answer := s.post(ask.path, in)
				switch {
				case ask.path != "/completion" || refused:
					require.Equal(t, want, got, "%s %v", ask.path, in)
				default: // computed, and then not sent
					require.Contains(t, string(of), "Unknown chat format")
					require.Equal(t, http.StatusOK, got)
				}
				require.NotContains(t, string(answer), "Unknown chat format")
				status, _ := s.get("/slots")
				require.Equal(t, http.StatusOK, status)
			}
		}
	}
	stock.post("/completion", map[string]any{"prompt": "a", "n_predict": 1, "chat_format": 99})
	_, err := llamatest.Client.Get(stock.URL + "/slots")
	require.Error(t, err, "llama-server lives on: no body need be changed any more")
}
