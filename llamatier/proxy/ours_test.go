package proxy

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOurOptionsAreHidden from clients, and those of the people who started the server are not.
func TestOurOptionsAreHidden(t *testing.T) {
	props := `{"chat_template":"\"endpoint_metrics\":true` + strings.Repeat("x", propsMax/2) + `","endpoint_slots":true,"endpoint_metrics":true,"n":1}`
	long := `{"x":"` + strings.Repeat("x", propsMax) + `"}`
	answer := props
	engine := listen(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, answer) })
	state := State{Listening: func() bool { return false }, Ready: func() bool { return true }}
	for _, ours := range []Ours{{}, {SavePath: true, Metrics: true, Slots: true}} {
		s := httptest.NewServer(New(engine, ours, state, slog.New(slog.DiscardHandler)))
		want, status := props, http.StatusOK
		if ours.Metrics {
			want, status = strings.Replace(props, `"endpoint_slots":true,"endpoint_metrics":true,"n"`, `"endpoint_slots":false,"endpoint_metrics":false,"n"`, 1), http.StatusNotImplemented
		}
		answer = props
		_, got := get(t, s.URL+"/props")
		require.True(t, want == got)
		for _, path := range []string{"/metrics", "/slots"} {
			got, _ := get(t, s.URL+path)
			require.Equal(t, status, got, path)
			res, err := http.Head(s.URL + path)
			require.NoError(t, err)
			res.Body.Close()
			require.Equal(t, status, res.StatusCode, path)
		}
		res, err := http.Post(s.URL+"/slots/0?action=save", "application/json", strings.NewReader("{}"))
		require.NoError(t, err)
		res.Body.Close()
		require.Equal(t, status, res.StatusCode)

		answer = long
		_, got = get(t, s.URL+"/props")
		require.True(t, long == got, "too long to look at")
		s.Close()
	}
}

// TestRefusalsComeAfterOthers: first llama-server says that it is loading, then that a key is
// wrong, and then that an option is not set.
func TestRefusalsComeAfterOthers(t *testing.T) {
	engine := listen(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	ready := false
	state := State{Listening: func() bool { return true }, Ready: func() bool { return ready }}
	s := httptest.NewServer(New(engine, Ours{SavePath: true, Keys: true}, state, slog.New(slog.DiscardHandler)))
	defer s.Close()
	for _, want := range []int{http.StatusServiceUnavailable, http.StatusUnauthorized} {
		res, err := http.Post(s.URL+"/slots/0?action=save", "application/json", strings.NewReader("{}"))
		require.NoError(t, err)
		res.Body.Close()
		require.Equal(t, want, res.StatusCode)
		ready = true
	}
}
