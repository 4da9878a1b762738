package main

import (
	"os"
	"runtime"
	"testing"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/stretchr/testify/require"
)

func TestFetchFromClone(t *testing.T) {
	w := newWorld(t)
	require.Regexp(t, `^Ollama v0\.16\.1 is in build/ollama/src \(clone [0-9a-f]{40}\)\n$`, w.ok("fetch", "--src", w.clone))
	for name, text := range upstreamFiles {
		require.Equal(t, text, w.read(w.src(name)), name)
	}
	if runtime.GOOS != "windows" {
		info, err := os.Stat(w.src("scripts/build.sh"))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o755), info.Mode())
	}
	require.Equal(t, "ollama v0.16.1", w.git(w.src(""), "log", "--format=%s"))
	require.Equal(t, w.head(), w.git(w.src(""), "rev-parse", "upstream"))
	require.Equal(t, w.git(w.clone, "rev-parse", "v0.16.1^{tree}"), w.git(w.src(""), "rev-parse", "HEAD^{tree}"))
	require.Empty(t, w.git(w.clone, "status", "--porcelain"))
}

func TestFetchWritesOnlyItsDirectory(t *testing.T) {
	w := newWorld(t).fetched()
	entries, err := os.ReadDir(w.root)
	require.NoError(t, err)
	require.Len(t, entries, 3) // build, go.mod, greet
	entries, err = os.ReadDir(w.path("build/ollama"))
	require.NoError(t, err)
	require.Len(t, entries, 2) // src and the lock; no temporary folder
}

func TestFetchIsIdempotent(t *testing.T) {
	w := newWorld(t).fetched()
	w.write(w.src(""), "mine.txt", "kept")
	require.Contains(t, w.ok("fetch"), "is already in")
	require.Equal(t, "kept", w.read(w.src("mine.txt")))
}

func TestFetchOtherVersion(t *testing.T) {
	w := newWorld(t).fetched()
	require.Equal(t,
		"build/ollama/src holds Ollama v0.16.1 from a clone; use another folder with --dir, such as build/v0.17.4, or replace it with patch-ollama fetch --version v0.17.4 --src ../clone --force",
		w.refused("fetch", "--src", w.clone, "--version", "v0.17.4"))
	w.ok("fetch", "--src", w.clone, "--version", "v0.17.4", "--force")
	require.Contains(t, w.read(w.src("kvcache/causal.go")), "rewritten")
	entries, err := os.ReadDir(w.path("build/ollama"))
	require.NoError(t, err)
	require.Len(t, entries, 2) // src and the lock; not the old tree
}

func TestFetchForceKeepsWork(t *testing.T) {
	w := newWorld(t).fetched()
	w.write(w.src(""), "main.go", "package main\n")
	other := []string{"fetch", "--src", w.clone, "--version", "v0.17.4", "--force"}
	require.Equal(t, "build/ollama/src has uncommitted changes (M main.go); commit or stash them there first", w.refused(other...))
	w.git(w.src(""), "commit", "--quiet", "--all", "--message", "mine")
	require.Equal(t,
		"build/ollama/src has 1 commit that patches/ does not hold; keep them with patch-ollama format, or drop them with patch-ollama revert --force",
		w.refused(other...))
	require.Equal(t, "package main\n", w.read(w.src("main.go")))
}

// A failed replacement leaves the old tree.
func TestFetchForceVerifiesFirst(t *testing.T) {
	w := newWorld(t).fetched()
	head := w.head()
	require.Contains(t, w.refused("fetch", "--src", w.clone, "--version", "v0.18.0", "--force"), "has no tag v0.18.0")
	require.Equal(t, head, w.head())
}

func TestFetchSweepsKilledRuns(t *testing.T) {
	w := newWorld(t)
	w.write(w.path("build/ollama"), ".src-123/new/main.go", "half")
	w.fetched()
	require.NoDirExists(t, w.path("build/ollama/.src-123"))
}

func TestFetchForeignFolder(t *testing.T) {
	w := newWorld(t)
	want := "build/ollama/src exists but was not made by patch-ollama; give another folder with --dir"
	w.write(w.src(""), "precious.txt", "mine")
	require.Equal(t, want, w.refused("fetch", "--src", w.clone, "--force"))
	w.git(w.src(""), "init", "--quiet")
	require.Equal(t, want, w.refused("fetch", "--src", w.clone, "--force"))
	require.Equal(t, "mine", w.read(w.src("precious.txt")))
}

func TestFetchRefusals(t *testing.T) {
	w := newWorld(t)
	for _, tc := range []struct {
		name   string
		args   []string
		status int
		want   string
	}{
		{"llama-server", []string{"--version", "v0.30.0"}, cli.Misused, "Ollama v0.30 and later drive llama-server instead of the native engine that kvtier patches; kvtier supports v0.16.0 … v0.24.0"},
		{"too old", []string{"--version", "v0.15.6"}, cli.Misused, "Ollama v0.15.6 is too old; kvtier supports v0.16.0 … v0.24.0"},
		{"between", []string{"--version", "v0.25.0"}, cli.Misused, "Ollama v0.25.0 is not known; kvtier supports v0.16.0 … v0.24.0"},
		{"pre-release", []string{"--version", "v0.16.1-rc0"}, cli.Misused, "Ollama v0.16.1-rc0 is not a final release; kvtier supports v0.16.0 … v0.24.0"},
		{"no v", []string{"--version", "0.16.1"}, cli.Misused, `"0.16.1" is not an Ollama version; write it like v0.16.1`},
		{"short", []string{"--version", "v0.16"}, cli.Misused, `"v0.16" is not an Ollama version; write it like v0.16.1`},
		{"not on the proxy", []string{"--version", "v0.18.0"}, cli.Failed, "Ollama v0.18.0 is not on the Go module proxy (v0.16.1, v0.16.2, v0.17.4, v0.24.0 are); clone https://github.com/ollama/ollama and pass it with --src"},
		{"no tag", []string{"--version", "v0.18.0", "--src", w.clone}, cli.Failed, "the clone " + w.clone + " has no tag v0.18.0; run git fetch --tags there"},
		{"dir is the checkout", []string{"--dir", "."}, cli.Misused, w.root + " holds the kvtier checkout; give --dir a folder of its own, such as build/ollama"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w.t = t
			require.Equal(t, tc.want, w.failed(tc.status, append([]string{"fetch"}, tc.args...)...))
			require.NoDirExists(t, w.src(""))
		})
	}
}

func TestFetchNoClone(t *testing.T) {
	w := newWorld(t)
	require.Contains(t, w.refused("fetch", "--src", t.TempDir()), "is not a git clone of Ollama")
}

func TestFetchWithoutGit(t *testing.T) {
	w := newWorld(t)
	w.onlyTools("go")
	require.Contains(t, w.refused("fetch", "--src", w.clone), "git was not found; install it (apt install git")
}

// The real module, from the module cache or the Go proxy.
func TestFetchFromModule(t *testing.T) {
	w := newWorld(t)
	require.Equal(t, "Ollama v0.16.1 is in build/ollama/src (module h1:DIxnLdS0om3hb7HheJqj6+ZnPCCMWmy/vyUxiQgRYoI=)\n", w.ok("fetch"))
	require.Empty(t, w.git(w.src(""), "status", "--porcelain"))
	require.NoFileExists(t, w.path("go.sum"))
	require.Contains(t, w.refused("fetch", "--src", w.clone), "holds Ollama v0.16.1 from a module")
	require.Contains(t, w.refused("build", "--src", w.clone), "or replace it with patch-ollama fetch --src ")
}
