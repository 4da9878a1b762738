package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestProgressBars: on a terminal long verbs show their progress, for each tier. The verbs'
// standard output does not change.
func TestProgressBars(t *testing.T) {
	dir := t.TempDir()
	noVariables(t)
	root, remote, file := filepath.Join(dir, "root"), filepath.Join(dir, "remote"), filepath.Join(dir, "chat.kvx")
	storeConversation(t, identityOf("qwen"), root, "")
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
		if what == "exporting" {
			args = append(args, "--force")
		}
		status, _, quiet := kvtier(t, append(args, "--json")...)
		require.Zero(t, status)
		require.Empty(t, quiet, "%s: not on a terminal", what)
	}
	var stdout, stderr bytes.Buffer
	h := host{stdout: &stdout, stderr: &stderr, terminal: true}
	require.Zero(t, runIn(t.Context(), h, []string{"import", "--root", filepath.Join(dir, "other"), file}))
	require.Contains(t, stderr.String(), "importing")
}
