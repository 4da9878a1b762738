package tiering

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
	"github.com/kvtier/kvtier/telemetry"
)

// ask sends a request to the mux that Ollama serves with.
func ask(t *testing.T, method, host string) (int, string) {
	t.Helper()
	r := httptest.NewRequest(method, "http://"+host+"/metrics", nil)
	w := httptest.NewRecorder()
	http.DefaultServeMux.ServeHTTP(w, r)
	body, err := io.ReadAll(w.Body)
	require.NoError(t, err)
	return w.Code, string(body)
}

func tierAt(root string) func(context.Context) (telemetry.State, error) {
	return func(context.Context) (telemetry.State, error) {
		return telemetry.State{Tiers: []telemetry.Tier{{Name: "local", Root: root}}}, nil
	}
}

// Only a server that was told to shows metrics; each server that starts in a process shows its
// own, and none does after its end.
func TestExposeMetrics(t *testing.T) {
	tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1"})
	t.Setenv("OLLAMA_METRICS", "")
	exposeMetrics(tierAt("/off"))()
	code, _ := ask(t, "GET", "localhost")
	require.Equal(t, http.StatusNotFound, code)

	t.Setenv("OLLAMA_METRICS", "yes")
	exposeMetrics(tierAt("/off"))()
	code, _ = ask(t, "GET", "localhost")
	require.Equal(t, http.StatusNotFound, code, "neither true nor false")

	t.Setenv("OLLAMA_METRICS", "1")
	stop := exposeMetrics(tierAt("/first"))
	code, body := ask(t, "GET", "localhost:11434")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, `root="/first"`)
	code, body = ask(t, "HEAD", "localhost:11434")
	require.Equal(t, http.StatusOK, code)
	require.NotEmpty(t, body, "net/http cuts it, not the handler")
	code, _ = ask(t, "GET", "evil.example:11434")
	require.Equal(t, http.StatusForbidden, code)

	second := exposeMetrics(tierAt("/second"))
	_, body = ask(t, "GET", "localhost")
	require.Contains(t, body, `root="/second"`)
	stop()
	_, body = ask(t, "GET", "localhost")
	require.Contains(t, body, `root="/second"`, "the end of the first server is not that of the second")
	second()
	code, _ = ask(t, "GET", "localhost")
	require.Equal(t, http.StatusNotFound, code)
}

// Ollama's own routes are the pattern / of the same mux. All but GET and HEAD of /metrics go there.
func TestMetricsLeaveOtherRoutesAlone(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	for request, want := range map[[2]string]int{
		{"GET", "/metrics"}: 200, {"HEAD", "/metrics"}: 200, {"POST", "/metrics"}: 418, {"OPTIONS", "/metrics"}: 418,
		{"GET", "/"}: 418, {"POST", "/api/chat"}: 418, {"GET", "/metrics/x"}: 418,
	} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(request[0], "http://localhost"+request[1], nil))
		require.Equal(t, want, w.Code, "%v", request)
	}
}
