package llamatest

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeEnv makes this program a fake server, with the number of the request for /health at which
// it says in the log of our daemon that it stores pages.
const fakeEnv = "KVTIER_TEST_SETTLED_AT"

func TestMain(m *testing.M) {
	if os.Getenv(fakeEnv) == "" {
		os.Exit(m.Run())
	}
	fmt.Fprintln(os.Stderr, fake())
	os.Exit(1)
}

// fullLog is a log that begins anew with its next line.
var fullLog = strings.Repeat("a line of another daemon\n", 100)

// fake answers at once.
func fake() error {
	var settledAt, health int
	if _, err := fmt.Sscan(os.Getenv(fakeEnv), &settledAt); err != nil {
		return err
	}
	http.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {
		if health++; health != settledAt {
			return
		}
		path := os.Getenv("KVTIER_LLAMA_LOG")
		text, _ := os.ReadFile(path)
		if string(text) == fullLog {
			text = nil
		}
		_ = os.WriteFile(path, append(text, settledLine...), 0o600) // Start waits for it
	})
	http.HandleFunc("/count", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, health) })
	port := os.Args[slices.Index(os.Args, "--port")+1]
	return http.ListenAndServe("127.0.0.1:"+port, nil)
}

const settledLine = "msg=\"kv tier: on\" slots=1\n"

// TestStartWaitsForOurDaemon: the server answers before the daemon has opened its pages.
func TestStartWaitsForOurDaemon(t *testing.T) {
	dir, folder := t.TempDir(), filepath.Join("lib", "ollama")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, folder), 0o700))
	self, err := os.Executable()
	require.NoError(t, err)
	for _, name := range []string{"llama-server", "llama-server-real"} {
		require.NoError(t, os.Symlink(self, filepath.Join(dir, folder, name)))
	}
	for name, c := range map[string]struct {
		root, before string // of the log
		want         string // requests for /health
	}{
		"the stock server":    {want: "1"},
		"no log":              {root: "pages", want: "3"},
		"an earlier daemon":   {root: "pages", before: settledLine, want: "3"},
		"a log that was full": {root: "pages", before: fullLog, want: "3"},
	} {
		t.Run(name, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "log")
			if c.before != "" {
				require.NoError(t, os.WriteFile(log, []byte(c.before), 0o600))
			}
			s, err := Start(t.Context(), Options{Dir: dir, Root: c.root, Log: log, Env: []string{fakeEnv + "=3"}})
			require.NoError(t, err)
			defer s.Kill()
			res, err := Client.Get(s.URL + "/count")
			require.NoError(t, err)
			defer res.Body.Close()
			got, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.Equal(t, c.want, string(got))
		})
	}
}
