package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestApply(t *testing.T) {
	w := newWorld(t).withSeries().fetched()
	require.Equal(t, "Ollama v0.16.1: 2 patches applied\n", w.ok("apply"))
	require.Contains(t, w.read(w.src("kvcache/causal.go")), "// and a half")
	require.Equal(t, "kvcache: add half\nmain: greet\nollama v0.16.1", w.git(w.src(""), "log", "--format=%s"))
	head := w.head()
	require.Equal(t, "Ollama v0.16.1: 2 patches already applied\n", w.ok("apply"))
	require.Equal(t, head, w.head())
}

func TestApplyIsDeterministic(t *testing.T) {
	w := newWorld(t).withSeries().fetched()
	w.ok("apply")
	w.ok("fetch", "--src", w.clone, "--dir", "other")
	w.ok("apply", "--dir", "other")
	require.Equal(t, w.head(), w.git(w.path("other/src"), "rev-parse", "HEAD"))
}

func TestApplyEmptySeries(t *testing.T) {
	w := newWorld(t).fetched()
	require.Equal(t, "Ollama v0.16.1: no patches to apply\n", w.ok("apply"))
}

func TestApplyWithoutSource(t *testing.T) {
	w := newWorld(t).withSeries()
	require.Equal(t, "there is no Ollama source yet; run patch-ollama fetch", w.refused("apply"))
}

func TestApplyChangedSeries(t *testing.T) {
	w := newWorld(t).withSeries().fetched()
	w.ok("apply")
	changed := strings.Replace(w.read(w.path(secondPatch)), "and a half", "and two thirds", 1)
	w.write(w.root, secondPatch, changed)
	require.Equal(t, "Ollama v0.16.1: 2 patches applied\n", w.ok("apply"))
	require.Contains(t, w.read(w.src("kvcache/causal.go")), "and two thirds")

	require.NoError(t, os.Remove(w.path(secondPatch)))
	require.Equal(t, "Ollama v0.16.1: 1 patch applied\n", w.ok("apply"))
	require.NoError(t, os.Remove(w.path(firstPatch)))
	w.ok("apply")
	require.Equal(t, w.git(w.src(""), "rev-parse", "upstream"), w.head())
}

func TestApplyRefusesDirtyTree(t *testing.T) {
	w := newWorld(t).withSeries().fetched()
	w.write(w.src(""), "main.go", "package main\n")
	w.write(w.src(""), "new.go", "package main\n")
	require.Equal(t, "build/ollama/src has uncommitted changes (M main.go and 1 more); commit or stash them there first", w.refused("apply"))
}

func TestApplyKeepsOwnCommits(t *testing.T) {
	w := newWorld(t).withSeries().fetched()
	w.ok("apply")
	w.commit("own.go", "package main\n", "main: own work")
	head := w.head()
	require.Contains(t, w.ok("apply"), "already applied")
	require.Equal(t, head, w.head())

	require.NoError(t, os.Remove(w.path(secondPatch)))
	require.Contains(t, w.refused("apply"), "has 1 commit that patches/ does not hold")
	require.Equal(t, head, w.head())
}

// An amended patch is the user's own work although it takes the place of a patch.
func TestApplyKeepsAmendedCommits(t *testing.T) {
	w := newWorld(t).withSeries().fetched()
	w.ok("apply")
	w.git(w.src(""), "commit", "--quiet", "--amend", "--message", "kvcache: add a half")
	head := w.head()
	require.NoError(t, os.Remove(w.path(secondPatch)))
	require.Contains(t, w.refused("apply"), "has 2 commits that patches/ does not hold")
	require.Equal(t, head, w.head())
}

func TestApplyMisfit(t *testing.T) {
	w := newWorld(t).withSeries()
	w.ok("fetch", "--src", w.clone, "--version", "v0.17.4")
	require.Equal(t,
		"0002-kvcache-add-half.patch does not apply to Ollama v0.17.4 (patch failed: kvcache/causal.go:3); the source was left unpatched",
		w.refused("apply"))
	require.Empty(t, w.git(w.src(""), "status", "--porcelain"))
	require.Equal(t, w.git(w.src(""), "rev-parse", "upstream"), w.head())
	require.NoDirExists(t, w.src(".git/rebase-apply"))
}

func TestApplyOtherVersion(t *testing.T) {
	w := newWorld(t).withSeries().fetched()
	require.Contains(t, w.refused("apply", "--version", "v0.16.2"), "holds Ollama v0.16.1")
}

func TestApplyNotAPatch(t *testing.T) {
	w := newWorld(t).fetched()
	w.write(w.root, "patches/0001-broken.patch", "hello\n")
	require.Contains(t, w.refused("apply"), "patches/0001-broken.patch is not a patch as git format-patch writes it")
}

// A killed git am leaves a half-applied series, which only revert --force may discard.
func TestApplyInterruptedAm(t *testing.T) {
	w := newWorld(t).withSeries().fetched()
	require.NoError(t, os.MkdirAll(w.src(".git/rebase-apply"), 0o755))
	require.Contains(t, w.refused("apply"), "is in the middle of a git am")
	w.ok("revert", "--force")
	w.ok("apply")
}

func TestRevert(t *testing.T) {
	w := newWorld(t).withSeries().fetched()
	w.ok("apply")
	w.write(w.path("build/ollama"), "cmake/cache", "kept")
	require.Equal(t, "Ollama v0.16.1 is as released\n", w.ok("revert"))
	require.Equal(t, upstreamFiles["kvcache/causal.go"], w.read(w.src("kvcache/causal.go")))
	require.NoFileExists(t, w.src("greet.go"))
	require.Equal(t, "kept", w.read(w.path("build/ollama/cmake/cache")))
	require.Equal(t, "Ollama v0.16.1 is as released already\n", w.ok("revert"))
	require.Contains(t, w.ok("apply"), "2 patches applied")
}

func TestRevertKeepsWork(t *testing.T) {
	w := newWorld(t).withSeries().fetched()
	w.ok("apply")
	w.commit("own.go", "package main\n", "main: own work")
	require.Contains(t, w.refused("revert"), "has 1 commit that patches/ does not hold")
	w.write(w.src(""), "notes.txt", "mine")
	require.Contains(t, w.refused("revert"), "has uncommitted changes (?? notes.txt)")

	w.ok("revert", "--force")
	require.NoFileExists(t, w.src("notes.txt"))
	require.NoFileExists(t, w.src("own.go"))
}

// Once the patches folder holds the commits, nothing is lost.
func TestRevertAfterFormat(t *testing.T) {
	w := newWorld(t).withSeries().fetched()
	w.ok("apply")
	w.commit("own.go", "package main\n", "main: own work")
	w.ok("format")
	w.ok("revert")
	require.NoFileExists(t, w.src("own.go"))
	require.Contains(t, w.ok("apply"), "3 patches applied")
	require.FileExists(t, w.src("own.go"))
}
