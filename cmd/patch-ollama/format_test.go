package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFormatRoundTrip(t *testing.T) {
	w := newWorld(t).withSeries().fetched()
	first, second := w.read(w.path(firstPatch)), w.read(w.path(secondPatch))
	w.ok("apply")
	require.Equal(t, "patches and the commits agree\n", w.ok("format", "--check"))
	require.Equal(t, "patches and the commits agree\n", w.ok("format"))
	require.Equal(t, first, w.read(w.path(firstPatch)))
	require.Equal(t, second, w.read(w.path(secondPatch)))
	require.Regexp(t, `(?m)^index [0-9a-f]{12}\.\.[0-9a-f]{12} 100644$`, second)
}

// Patches have the project's sender, also over an author whose name is so long that git folds it.
func TestFormatWritesTheSender(t *testing.T) {
	w := newWorld(t).withSeries().fetched()
	w.ok("apply")
	w.commit("own.go", "package main\n", "main: own work")
	w.git(w.src(""), "commit", "--quiet", "--amend", "--no-edit", "--author", "Somebody of the maintainers <somebody@a-long-name-of-a-machine.example.com>")
	w.ok("format")
	text := w.read(w.path("patches/0003-main-own-work.patch"))
	require.Regexp(t, `^From 0{40} .*\nFrom: kvtier <kvtier@users\.noreply\.github\.com>\nDate: `, text)
	require.NotContains(t, text, "maintainers")
	require.Equal(t, "patches and the commits agree\n", w.ok("format", "--check"))
}

// The user's git settings neither change a patch nor prevent one.
func TestFormatIgnoresPersonalSettings(t *testing.T) {
	w := newWorld(t).withSeries()
	hooks := filepath.Join(t.TempDir(), "hooks")
	w.write(hooks, "pre-applypatch", "#!/bin/sh\nexit 1\n")
	require.NoError(t, os.Chmod(filepath.Join(hooks, "pre-applypatch"), 0o755))
	config := filepath.Join(t.TempDir(), "gitconfig")
	w.write(filepath.Dir(config), "gitconfig", `
[core]
	abbrev = 7
	autocrlf = true
	hooksPath = `+filepath.ToSlash(hooks)+`
[commit]
	gpgSign = true
[diff]
	noprefix = true
	context = 9
[format]
	signature = me
	numbered = true
	coverLetter = true
	useAutoBase = true
`)
	t.Setenv("GIT_CONFIG_GLOBAL", config)
	t.Setenv("GIT_DIR", t.TempDir())
	w.fetched()
	w.ok("apply")
	require.Equal(t, "patches and the commits agree\n", w.ok("format", "--check"))
}

func TestFormatNewChangedStale(t *testing.T) {
	w := newWorld(t).withSeries().fetched()
	w.ok("apply")
	w.git(w.src(""), "reset", "--quiet", "--hard", "HEAD~1")
	w.commit("own.go", "package main\n", "main: own work")
	r := w.run("format", "--check")
	require.Equal(t, 1, r.status)
	require.Equal(t, "stale 0002-kvcache-add-half.patch\nnew 0002-main-own-work.patch\n", r.stdout)
	require.Contains(t, r.stderr, "patches and the commits in build/ollama/src differ")
	require.FileExists(t, w.path(secondPatch))

	require.Equal(t, "stale 0002-kvcache-add-half.patch\nnew 0002-main-own-work.patch\n", w.ok("format"))
	require.NoFileExists(t, w.path(secondPatch))
	require.Contains(t, w.read(w.path("patches/0002-main-own-work.patch")), "Subject: [PATCH] main: own work")
	require.FileExists(t, w.path("patches/README.md"))
	require.Equal(t, "patches and the commits agree\n", w.ok("format", "--check"))
	require.Contains(t, w.ok("apply"), "already applied")
}

func TestFormatStartsASeries(t *testing.T) {
	w := newWorld(t).fetched()
	w.commit("own.go", "package main\n", "main: own work")
	require.Equal(t, "new 0001-main-own-work.patch\n", w.ok("format"))
	require.Contains(t, w.ok("status"), "1/1 applied\n")
}

// Formatting an unpatched tree would delete the whole series.
func TestFormatKeepsUnappliedPatches(t *testing.T) {
	w := newWorld(t).withSeries().fetched()
	require.Equal(t,
		"patches holds patches that are not applied to build/ollama/src and would be lost (stale 0001-main-greet.patch); run patch-ollama apply first, or format --force",
		w.refused("format"))
	require.FileExists(t, w.path(firstPatch))

	w.ok("apply")
	w.write(w.root, secondPatch, strings.Replace(w.read(w.path(secondPatch)), "a half", "an edit", 1))
	require.Contains(t, w.refused("format"), "would be lost (changed 0002-kvcache-add-half.patch)")
	w.ok("format", "--force")
	require.Contains(t, w.read(w.path(secondPatch)), "a half")
}

func TestFormatRefusesDirtyTree(t *testing.T) {
	w := newWorld(t).withSeries().fetched()
	w.ok("apply")
	w.write(w.src(""), "main.go", "package main\n")
	require.Contains(t, w.refused("format"), "has uncommitted changes")
	require.Contains(t, w.refused("format", "--check"), "has uncommitted changes")
}
