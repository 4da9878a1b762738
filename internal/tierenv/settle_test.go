package tierenv

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
)

// A server and its runners use one directory, even if the disk changes before a runner
// starts.
func TestDefaultDirectoryIsHandedDown(t *testing.T) {
	home := t.TempDir()
	tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "HOME": home, "USERPROFILE": home, LocalVariable: ""})
	first, err := localRoot()
	if err != nil {
		t.Skip("no default directory for pages on this system")
	}
	log, lines := tierenvtest.Logger()
	_, err = Settle(log, log)
	require.NoError(t, err)
	require.Equal(t, first.path, os.Getenv(LocalVariable))
	require.Contains(t, lines.String(), "kv tier: pages are kept ")
	require.Contains(t, lines.String(), "local="+first.path)

	_, err = Settle(log, log)
	require.NoError(t, err)
	require.Equal(t, first.path, os.Getenv(LocalVariable))
	require.Equal(t, 1, bytes.Count(lines.Bytes(), []byte("\n")), "one line is logged")
}

// Nothing is logged about a directory that is not used.
func TestDefaultDirectoryOfAServerThatKeepsNoPages(t *testing.T) {
	home := t.TempDir()
	for variable, value := range map[string]string{
		"OLLAMA_KV_TIERING":       "perhaps",
		"OLLAMA_KV_TIER_LOCAL_GB": "lots",
		"OLLAMA_KV_INSTANCE_ID":   "../gpu0",
	} {
		t.Run(variable, func(t *testing.T) {
			tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "HOME": home, "USERPROFILE": home, LocalVariable: ""})
			t.Setenv(variable, value)
			if _, err := localRoot(); err != nil {
				t.Skip("no default directory for pages on this system")
			}
			log, lines := tierenvtest.Logger()
			_, err := Settle(log, log)
			require.Error(t, err)
			require.Empty(t, lines.String())
			require.Empty(t, os.Getenv(LocalVariable))
		})
	}
}

// A default is chosen once: another process may store the first page of a root before a
// second look, which would choose that root.
func TestDefaultDirectoryIsChosenOnce(t *testing.T) {
	for _, id := range []string{"", "gpu0"} {
		tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_INSTANCE_ID": id, LocalVariable: ""})
		own := filepath.Join(t.TempDir(), "own")
		choices := []root{{own, "Ollama's own folder"}, {filepath.Join(t.TempDir(), "former"), "it holds pages"}}
		choose := func() (root, error) {
			first := choices[0]
			choices = choices[1:]
			return first, nil
		}
		log, lines := tierenvtest.Logger()
		c, err := settle(log, log, choose)
		require.NoError(t, err)
		require.Len(t, choices, 1, "number of choices left")
		require.Equal(t, own, os.Getenv(LocalVariable))
		require.Contains(t, lines.String(), "local="+own)
		after, err := FromEnvironment(log)
		require.NoError(t, err)
		require.Equal(t, c.Local, after.Local, "a runner uses the server's directory")
	}
}
