package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEnv(t *testing.T) {
	w := newWorld(t).withSeries().fetched()
	t.Setenv("CGO_CPPFLAGS", `-DIT='"a b"'`)
	out := w.ok("env")
	require.Contains(t, out, "export GOWORK='"+w.path("build/ollama/go.work")+"'\n")
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("a shell reads the output: ", err)
	}
	got, err := exec.Command("sh", "-c", out+"\nprintf %s \"$CGO_CPPFLAGS\"").Output()
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(got), `-DIT='"a b"' -DKVTIER_HEADERS=0x`), "%s", got)
}

func TestEnvWithoutSource(t *testing.T) {
	w := newWorld(t).withSeries()
	require.Contains(t, w.refused("env"), "patch-ollama fetch")
}
