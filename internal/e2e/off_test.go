package e2e

import (
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// freePort is a port of this machine at which nobody listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return port
}

// TestOffOpensNothing: without tiering, variables of metrics make no file, no listener and no path.
func TestOffOpensNothing(t *testing.T) {
	home, root, addr := t.TempDir(), filepath.Join(t.TempDir(), "pages"), "127.0.0.1:"+freePort(t)
	s := startOptions(t, root, ollamatest.Options{Dir: home, Env: []string{
		"OLLAMA_METRICS=1", "OLLAMA_KV_METRICS_ADDR=" + addr, "OLLAMA_KV_TIER_LOCAL=" + root, "OLLAMA_NUM_PARALLEL=1",
	}})
	s.ask(prompt(t, 600, 1), 4)
	response, err := http.Get(s.URL().JoinPath("metrics").String())
	require.NoError(t, err)
	response.Body.Close()
	require.Equal(t, http.StatusNotFound, response.StatusCode)
	_, err = net.Dial("tcp", addr)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NoDirExists(t, root)
	_ = filepath.WalkDir(home, func(path string, _ fs.DirEntry, _ error) error {
		require.NotContains(t, path, "kv-cache")
		require.NotContains(t, path, "telemetry")
		return nil
	})
}

// Without a named directory, pages are in Ollama's own folder, where the next server finds
// them.
func TestDefaultDirectory(t *testing.T) {
	home := t.TempDir()
	if ram, err := vfs.OS.IsRAM(home); err != nil || ram {
		t.Skip("temporary files are in memory here")
	}
	if _, err := os.Stat(tierenv.FormerRoot); err == nil {
		t.Skip("there is a former default directory here")
	}
	options := ollamatest.Options{Dir: home, Env: []string{"OLLAMA_KV_TIERING=1", "OLLAMA_NUM_PARALLEL=1"}}
	text := prompt(t, 600, 1)
	root := filepath.Join(home, "home", filepath.FromSlash(tierenv.DefaultRoot))
	first := startOptions(t, root, options)
	require.NoError(t, first.WaitLog(first.context(), "kv tier: pages are kept in the default directory"))
	first.ask(text, 4)
	require.NoError(t, first.Stop())
	require.NotEmpty(t, first.pages())
	require.NoDirExists(t, tierenv.FormerRoot)

	again := startOptions(t, root, options)
	require.Equal(t, 599, again.ask(text, 4).restored)
}
