package station

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/listen"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve serves a root until the test ends, and returns when the process collects.
func serve(t *testing.T, root string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	collects, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- Serve(ctx, root, Options{Version: "1", Logger: slog.New(slog.DiscardHandler), OnServe: func() { close(collects) }})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			require.ErrorIs(t, err, context.Canceled)
		}
	})
	select {
	case <-collects:
	case err := <-done:
		require.NoError(t, err)
	}
}

// get asks the listener, which opens soon after the collector.
func get(t *testing.T, url string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		res, err := client.Get(url)
		if err != nil {
			require.NoError(t, t.Context().Err())
			continue
		}
		text, err := io.ReadAll(res.Body)
		require.NoError(t, errors.Join(err, res.Body.Close()))
		require.Equal(t, http.StatusOK, res.StatusCode, string(text))
		return string(text)
	}
}

func TestTheCollectorHasTheListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	t.Setenv(listen.Variable, addr)
	root := filepath.Join(t.TempDir(), "pages")
	require.NoError(t, os.Mkdir(root, 0o700))
	serve(t, root)
	require.Contains(t, get(t, "http://"+addr+"/metrics"), "ollama_kv_up")
	require.Contains(t, strings.ToLower(get(t, "http://"+addr+"/")), "<!doctype html>")
}

// TestHintsOnThePage: the page shows what Hints has found, also while a later look hangs; metrics do not wait.
func TestHintsOnThePage(t *testing.T) {
	looks, answer := make(chan struct{}, 8), make(chan []string)
	h := &hints{look: func() []string { looks <- struct{}{}; return <-answer }}
	read := h.addTo(func(context.Context) (telemetry.State, error) { return telemetry.State{Root: "/pages"}, nil })
	said := func() []string {
		s, err := read(t.Context())
		require.NoError(t, err)
		require.Equal(t, "/pages", s.Root)
		return s.Hints
	}
	require.Empty(t, said(), "nobody waits for the first look")
	require.Empty(t, said())
	answer <- []string{"replaced"}
	for said() == nil {
		runtime.Gosched()
	}
	require.Equal(t, []string{"replaced"}, said())
	require.Len(t, looks, 1)

	h.mu.Lock()
	h.at = h.at.Add(-hintsEvery)
	h.mu.Unlock()
	require.Equal(t, []string{"replaced"}, said(), "the second look hangs")
	answer <- nil
	for said() != nil {
		runtime.Gosched()
	}
	require.Len(t, looks, 2)
}

func TestAnAddressThatIsNone(t *testing.T) {
	t.Setenv(listen.Variable, "no address")
	root := filepath.Join(t.TempDir(), "pages")
	require.NoError(t, os.Mkdir(root, 0o700))
	err := Serve(t.Context(), root, Options{Logger: slog.New(slog.DiscardHandler)})
	require.ErrorAs(t, err, new(AddressError))
}

func TestADirectoryThatCannotBeUsed(t *testing.T) {
	t.Setenv(listen.Variable, "")
	root := filepath.Join(t.TempDir(), "pages")
	require.NoError(t, os.Mkdir(root, 0o777))
	require.NoError(t, os.Chmod(root, 0o777))
	require.Error(t, Serve(t.Context(), root, Options{Logger: slog.New(slog.DiscardHandler)}))
}
