package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/tierenv"
)

// TestProgressBars: on a terminal long verbs show their progress, for each tier. The verbs'
// standard output does not change.
func TestProgressBars(t *testing.T) {
	dir := t.TempDir()
	noVariables(t)
	root, remote, file := filepath.Join(dir, "root"), filepath.Join(dir, "remote"), filepath.Join(dir, "chat.kvx")
	storeConversation(t, root)
	require.NoError(t, os.CopyFS(remote, os.DirFS(root)))
	require.NoError(t, os.Chmod(remote, 0o700))
	for what, args := range map[string][]string{
		"checking remote": {"check", "--root", root, "--remote", remote},
		"checking local":  {"repair", "--root", root, "--remote", remote},
		"exporting":       {"export", "--root", root, "--last", "-o", file},
		"measuring":       {"bench", "--root", root, "--gb", "0.01"},
	} {
		var stdout, stderr bytes.Buffer
		h := host{stdout: &stdout, stderr: &stderr, terminal: true}
		require.Zero(t, runIn(t.Context(), h, args), "%s: %s", what, stderr.String())
		require.Contains(t, stderr.String(), what)
		require.NotContains(t, stdout.String(), what)
		var quiet bytes.Buffer
		if what == "exporting" {
			args = append(args, "--force")
		}
		require.Zero(t, run(t.Context(), append(args, "--json"), &stdout, &quiet))
		require.Empty(t, quiet.String(), "%s: not on a terminal", what)
	}
	var stdout, stderr bytes.Buffer
	h := host{stdout: &stdout, stderr: &stderr, terminal: true}
	require.Zero(t, runIn(t.Context(), h, []string{"import", "--root", filepath.Join(dir, "other"), file}))
	require.Contains(t, stderr.String(), "importing")
}

// noVariables unsets the variables of a server, some of which the command sets.
func noVariables(t *testing.T) {
	for _, name := range []string{localVar, localGBVar, remoteVar, remoteGBVar, "OLLAMA_KV_TIERING"} {
		t.Setenv(name, "")
	}
	t.Setenv("OLLAMA_MODELS", t.TempDir())
}

// storeConversation stores 40 tokens below a root and returns their pages' keys.
func storeConversation(t *testing.T, root string) []pagefile.Key {
	t.Helper()
	identity := identityOf("qwen")
	store, err := diskstore.Open(t.Context(), diskstore.Options{
		Fingerprint: tierenv.Fingerprint(identity), Identity: identity, PageTokens: pageTokens,
		Local: diskstore.TierConfig{Root: root},
	})
	require.NoError(t, err)
	keys, err := putConversation(t.Context(), store, tierenv.Fingerprint(identity), conversation(1, 40))
	require.NoError(t, err)
	require.NoError(t, store.Close())
	return keys
}
