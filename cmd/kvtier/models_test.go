package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/tierenv"
)

// TestAmbiguousDigits: digits that could name two models or pages are refused.
func TestAmbiguousDigits(t *testing.T) {
	noVariables(t)
	root := filepath.Join(t.TempDir(), "root")
	var last string
	for _, weights := range []string{"abcd1", "abcd2"} {
		identity := map[string]string{tierenv.KeyWeights: weights + strings.Repeat("0", 59)}
		last = storeConversation(t, identity, root, "")[0].String()
	}
	t.Setenv(localVar, root)
	for _, verb := range [][]string{{"rm"}, {"export", "--last", "-o", filepath.Join(t.TempDir(), "chat.kvx")}} {
		status, _, said := kvtier(t, append(verb, "--model", "abcd")...)
		require.Equal(t, 1, status, verb)
		require.Contains(t, said, `"abcd" could be abcd10000000 or abcd20000000; give more digits`)
	}
	// A page whose key differs in the last digit only.
	pages, err := filepath.Glob(filepath.Join(root, "v1", "*", last[:2], last+".kvp"))
	require.NoError(t, err)
	require.Len(t, pages, 1)
	data, err := os.ReadFile(pages[0])
	require.NoError(t, err)
	twin := last[:63] + map[bool]string{true: "1", false: "0"}[last[63] == '0']
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(pages[0]), twin+".kvp"), data, 0o600))
	for _, verb := range [][]string{{"inspect", last[:8]}, {"export", "--key", last[:63], "-o", filepath.Join(t.TempDir(), "chat.kvx")}} {
		status, _, said := kvtier(t, verb...)
		require.Equal(t, 1, status, verb)
		require.Contains(t, said, "; give more digits")
	}
	status, _, said := kvtier(t, "inspect", last)
	require.Zero(t, status, said)
	status, _, said = kvtier(t, "rm", "--model", "abcd1")
	require.Zero(t, status, said)
}
