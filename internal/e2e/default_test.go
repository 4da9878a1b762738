package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/tierenv"
)

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
