package trial

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// playVariable has the test's program play kvtier serve, as a value of it says.
const playVariable = "KVTIER_TRIAL_PLAY"

func TestMain(m *testing.M) {
	if how := os.Getenv(playVariable); how != "" {
		play(how)
	}
	os.Exit(m.Run())
}

// play is a server that is ready at the second look, and ends the process if it has to end. A file keeps what
// it was asked over its end.
func play(how string) {
	if how == "ends" {
		fmt.Fprintln(os.Stderr, "error: no such tensor")
		os.Exit(1)
	}
	after := func(flag string) string { return os.Args[slices.Index(os.Args, flag)+1] }
	looks := 0
	http.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) {
		if looks++; looks == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	http.HandleFunc("/v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Messages []struct{ Content string } }
		_ = json.NewDecoder(r.Body).Decode(&in)
		asked, _ := os.ReadFile(after("-m"))
		cached := 0
		prompt := in.Messages[0].Content
		if strings.Contains(string(asked), prompt) {
			cached = 990
		}
		_ = os.WriteFile(after("-m"), append(asked, prompt...), 0o600)
		switch how {
		case "breaks off":
			fmt.Fprint(w, "data: {}\n\n")
		case "fails":
			fmt.Fprint(w, "data: {\"error\":{\"message\":\"no room\"}}\n\n")
		case "refuses":
			http.Error(w, "no template", http.StatusBadRequest)
		default:
			fmt.Fprint(w, ": ping\n\ndata: {\"choices\":[{\"delta\":{\"reasoning_content\":\"Hm. \"}}]}\n\n")
			fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"Yes.\"}}],\"timings\":{\"cache_n\":%d,\"prompt_n\":%d}}\n\ndata: [DONE]\n\n", cached, 1000-cached)
		}
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServe(net.JoinHostPort(after("--host"), after("--port")), nil))
	os.Exit(1)
}

// TestAlone: a llama-server is asked, killed, started and asked again, and every way in which it fails is
// named.
func TestAlone(t *testing.T) {
	for how, want := range map[string]string{
		"answers":    "",
		"ends":       "llama-server ended before it had loaded",
		"breaks off": "the answer of llama-server broke off: unexpected EOF",
		"fails":      "read the answer of llama-server: no room",
		"refuses":    "ask llama-server for /v1/chat/completions: 400 Bad Request: no template",
	} {
		t.Setenv(playVariable, how)
		s := &Alone{File: filepath.Join(t.TempDir(), "small.gguf"), Window: 2048, Serve: []string{os.Args[0], "serve"}}
		err := s.Start(t.Context())
		var r Result
		if err == nil {
			r, err = Run(t.Context(), s, step)
		}
		require.NoError(t, s.Close())
		if want != "" {
			require.ErrorContains(t, err, want)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, "small", r.Model)
		require.Equal(t, "Hm. Yes.", r.Said)
		require.True(t, r.Restored())
		require.Equal(t, []string{Cold, Slot, Killed}, []string{r.Rows[0].Situation, r.Rows[1].Situation, r.Rows[2].Situation})
		require.Equal(t, 0, *r.Rows[0].Reused)
		require.Equal(t, 1000, r.Rows[2].Tokens)
		_, err = http.Get(s.url)
		require.Error(t, err, "no process is left")
	}
}

// TestAloneDoesNotStartAgain: kvtier was removed since the first start, and nothing is left to end.
func TestAloneDoesNotStartAgain(t *testing.T) {
	t.Setenv(playVariable, "answers")
	s := &Alone{File: filepath.Join(t.TempDir(), "small.gguf"), Serve: []string{os.Args[0], "serve"}}
	require.NoError(t, s.Start(t.Context()))
	s.Serve[0] = filepath.Join(t.TempDir(), "removed")
	_, err := Run(t.Context(), s, step)
	require.ErrorContains(t, err, "start llama-server: ")
	require.NoError(t, s.Close())
}
