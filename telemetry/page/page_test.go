package page

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
)

func get(t *testing.T, h http.Handler, method, path string) *http.Response {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w.Result()
}

func fixed(state telemetry.State) func(context.Context) (telemetry.State, error) {
	return func(context.Context) (telemetry.State, error) { return state, nil }
}

// Nothing in the document leads to another place, and no script or style may be added to it.
func TestDocumentIsSelfContained(t *testing.T) {
	r := get(t, Handler(fixed(telemetry.State{})), http.MethodGet, "/")
	require.Equal(t, 200, r.StatusCode)
	require.Equal(t, "text/html; charset=utf-8", r.Header.Get("Content-Type"))
	csp := r.Header.Get("Content-Security-Policy")
	require.Contains(t, csp, "default-src 'none'")
	require.NotContains(t, csp, "unsafe")
	require.NotContains(t, strings.ReplaceAll(document, "http://www.w3.org/2000/svg", ""), "://")
	require.NotRegexp(t, regexp.MustCompile(`innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function`), document)
	require.NotContains(t, document, "/*style*/")
	require.NotContains(t, document, "/*script*/")
	require.Equal(t, 1, strings.Count(document, "</script>"))
}

func TestOtherRequests(t *testing.T) {
	h := Handler(fixed(telemetry.State{}))
	require.Equal(t, 404, get(t, h, http.MethodGet, "/page.css").StatusCode)
	r := get(t, h, http.MethodGet, "/state.json")
	require.Empty(t, r.Header.Get("Access-Control-Allow-Origin"))
	require.Contains(t, document, fmt.Sprintf("const silentSeconds = %v;", telemetry.SilentAfter.Seconds()))
}

// A state with words is served without them, and the caller's state keeps them.
func TestNoWordsLeave(t *testing.T) {
	state := sample(now)
	r := get(t, Handler(fixed(state)), http.MethodGet, "/state.json")
	var body strings.Builder
	var got telemetry.State
	require.NoError(t, json.NewDecoder(r.Body).Decode(&got))
	require.NoError(t, json.NewEncoder(&body).Encode(got))
	require.NotContains(t, body.String(), "777001")
	require.NotContains(t, body.String(), `"words"`)
	require.Len(t, got.Prompts, len(state.Prompts))
	require.NotNil(t, state.Prompts[1].Miss.Words)
	require.NotNil(t, state.Processes[0].Busters[0].Words)
}

// An error of the files names paths, which the page does not. Before the first report the state is empty.
func TestNoState(t *testing.T) {
	for err, want := range map[error]int{errors.New("open /secret/telemetry: permission denied"): 503, fmt.Errorf("/secret: %w", fs.ErrNotExist): 200} {
		r := get(t, Handler(func(context.Context) (telemetry.State, error) { return telemetry.State{}, err }), http.MethodGet, "/state.json")
		require.Equal(t, want, r.StatusCode)
		body, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.NotContains(t, string(body), "secret")
		require.Equal(t, want == 503, strings.Contains(string(body), "The state could not be read. kvtier doctor looks for the cause."))
	}
}
