package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
	require.Equal(t, []string{
		"VERSION PATCHES APPLIES REVERTS BUILDS TESTS",
		"v0.16.1 2 yes yes - -",
		"v0.16.2 2 yes yes - -",
		"v0.17.4 2 no - - -",
		"v0.17.4: 0002-kvcache-add-half.patch: patch failed: kvcache/causal.go:3",
	}, tableLines(r.stdout))
	entries, err := os.ReadDir(w.path("build/ollama"))
	require.NoError(t, err)
	require.Empty(t, entries)
	require.Empty(t, w.git(w.clone, "status", "--porcelain"))
}

// tableLines removes the padding of a table.
func tableLines(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return lines
}

// A patch that git can apply but not revert: a copied file.
func TestCheckReverts(t *testing.T) {
	w := newWorld(t).withSeries().fetched()
	w.ok("apply")
	w.commit("kvcache/copy.go", upstreamFiles["kvcache/causal.go"]+"// and more\n", "kvcache: copy")
	w.git(w.src(""), "-c", "core.abbrev=12", "format-patch", "--quiet", "--no-signature", "--no-numbered", "--zero-commit",
		"--find-copies-harder", "--start-number", "3", "--output-directory", w.path("patches"), "-1")
	w.ok("revert", "--force")
	w.ok("apply")
	r := w.run("check", "--src", w.clone, "--test")
	require.Equal(t, 1, r.status)
	require.Equal(t, []string{
		"VERSION PATCHES APPLIES REVERTS BUILDS TESTS",
		"v0.16.1 3 yes no - -",
		"v0.16.1: 0003-kvcache-copy.patch: does not come off: kvcache/causal.go: already exists in index",
	}, tableLines(r.stdout))
}

func TestCheckBuild(t *testing.T) {
	w := newWorld(t).withSeries().fetched().forBuild()
	r := w.run("check", "--all", "--src", w.clone, "--test")
	require.Equal(t, 1, r.status)
	require.Equal(t, []string{
		"v0.16.1 2 yes yes yes yes",
		"v0.16.2 2 yes yes yes yes",
		"v0.17.4 2 no - - -",
	}, tableLines(r.stdout)[1:4], r.stdout)
	require.Contains(t, w.ok("status"), "0/2 applied\ntree        clean\nbinary      none")
	require.NoFileExists(t, w.cmakeLog(), "no library was built")
	entries, err := os.ReadDir(w.path("build/ollama/trial"))
	require.NoError(t, err)
	for _, entry := range entries {
		require.Contains(t, []string{"log", ".lock"}, entry.Name())
	}
}

func TestCheckBuildFails(t *testing.T) {
	w := newWorld(t).withSeries().forBuild()
	w.write(w.root, firstPatch, strings.Replace(w.read(w.path(firstPatch)), "println(greet.Hello)", "println(greet.Nothing)", 1))
	r := w.run("check", "--src", w.clone, "--test")
	require.Equal(t, 1, r.status)
	lines := tableLines(r.stdout)
	require.Equal(t, "v0.16.1 2 yes yes no -", lines[1])
	require.Contains(t, r.stdout, "v0.16.1: go build v0.16.1 failed (exit status 1); the last")
	require.Contains(t, r.stdout, "of build/ollama/trial/log/go-build-v0.16.1.log")
	require.Contains(t, r.stdout, "undefined: greet.Nothing")
}

// Upstream's tests of packages that the series touches must pass; tests of other packages
// may fail.
func TestCheckTest(t *testing.T) {
	w := newWorld(t).withSeries().forBuild()
	failing := "package %s\n\nimport \"testing\"\n\nfunc TestFails(t *testing.T) { t.Error(\"as it should\") }\n"
	w.git(w.clone, "checkout", "--quiet", "v0.16.1")
	w.release("v0.18.0", "version/version_test.go", fmt.Sprintf(failing, "version"))
	w.release("v0.18.1", "kvcache/causal_test.go", fmt.Sprintf(failing, "kvcache"))

	require.Equal(t, "v0.18.0 2 yes yes yes yes", tableLines(w.ok("check", "--src", w.clone, "--version", "v0.18.0", "--test"))[1])
	r := w.run("check", "--src", w.clone, "--version", "v0.18.1", "--test")
	require.Equal(t, 1, r.status)
	require.Equal(t, "v0.18.1 2 yes yes yes no", tableLines(r.stdout)[1])
	require.Contains(t, r.stdout, "as it should")
}

func TestCheckUnavailableVersion(t *testing.T) {
	w := newWorld(t).withSeries()
	r := w.run("check", "--version", "v0.18.0")
	require.Equal(t, 1, r.status)
	require.Contains(t, r.stdout, "Ollama v0.18.0 is not on the Go module proxy")
	require.Equal(t, "v0.18.0 2 - - - -", tableLines(r.stdout)[1])
}
