package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheck(t *testing.T) {
	w := newWorld(t).withSeries()
	require.Equal(t, "VERSION    PATCHES    RESULT\nv0.16.2    2          applies\n", w.ok("check", "--src", w.clone, "--version", "v0.16.2"))
	entries, err := os.ReadDir(w.path("build/ollama"))
	require.NoError(t, err)
	require.Empty(t, entries)
	require.Empty(t, w.git(w.clone, "status", "--porcelain"))
}

func TestCheckLeavesSourceAlone(t *testing.T) {
	w := newWorld(t).withSeries().fetched()
	w.write(w.src(""), "main.go", "package main\n")
	head := w.head()
	w.ok("check", "--src", w.clone)
	require.Equal(t, head, w.head())
	require.Equal(t, "package main\n", w.read(w.src("main.go")))
}

func TestCheckAll(t *testing.T) {
	w := newWorld(t).withSeries()
	r := w.run("check", "--all", "--src", w.clone)
	require.Equal(t, 1, r.status)
	var lines []string
	for line := range strings.Lines(r.stdout) {
		lines = append(lines, strings.TrimSpace(line))
	}
	require.Equal(t, []string{
		"VERSION    PATCHES    RESULT",
		"v0.16.1    2          applies",
		"v0.16.2    2          applies",
		"v0.17.4    2          0002-kvcache-add-half.patch: patch failed: kvcache/causal.go:3",
	}, lines)
}

func TestCheckJSON(t *testing.T) {
	w := newWorld(t).withSeries()
	r := w.run("check", "--all", "--src", w.clone, "--json")
	require.Equal(t, 1, r.status)
	var results []checkResult
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &results))
	require.Len(t, results, 3)
	require.True(t, results[0].Applies)
	require.Equal(t, 2, results[0].Patches)
	require.Regexp(t, `^clone [0-9a-f]{40}$`, results[0].Origin)
	require.Equal(t, checkResult{
		Version: "v0.17.4", Origin: results[2].Origin, Patches: 2,
		Patch: "0002-kvcache-add-half.patch", Detail: "patch failed: kvcache/causal.go:3",
	}, results[2])
}

func TestCheckUnavailableVersion(t *testing.T) {
	w := newWorld(t).withSeries()
	r := w.run("check", "--version", "v0.18.0")
	require.Equal(t, 1, r.status)
	require.Contains(t, r.stdout, "Ollama v0.18.0 is not on the Go module proxy")
}

func TestCheckContradiction(t *testing.T) {
	w := newWorld(t)
	require.Equal(t, "--all and --version contradict each other; give one of them", w.refused("check", "--all", "--version", "v0.16.1"))
}

// Check and apply must agree about what fits.
func TestCheckAgreesWithApply(t *testing.T) {
	w := newWorld(t).withSeries()
	for _, version := range []string{"v0.16.1", "v0.16.2", "v0.17.4"} {
		dir := "build/" + version
		w.ok("fetch", "--src", w.clone, "--version", version, "--dir", dir)
		check := w.run("check", "--src", w.clone, "--version", version)
		apply := w.run("apply", "--dir", dir)
		require.Equal(t, check.status, apply.status, version)
	}
}
