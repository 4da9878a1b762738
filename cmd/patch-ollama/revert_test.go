package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

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
