package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	oldOverlay = "patches/v0.16.0-v0.17.0/0001-model-for-old-releases.patch"
	newOverlay = "patches/v0.18.0-v0.20.0/0001-model-for-new-releases.patch"

	// newDir is the build directory of v0.18.0.
	newDir = "build/v0.18.0"
)

// withReleases tags v0.16.0, and a v0.18.0 in which all code that the series touches is at
// other lines.
func (w *world) withReleases() *world {
	w.t.Helper()
	w.git(w.clone, "tag", "v0.16.0", "v0.16.1")
	w.git(w.clone, "checkout", "--quiet", "-b", "new", "v0.16.1")
	w.release("v0.18.0", "kvcache/causal.go", strings.Replace(upstreamFiles["kvcache/causal.go"], "// one", "// zero\n// one", 1))
	return w
}

// withOverlays has a tree of v0.16.1 and one of v0.18.0, both patched, and an
// overlay that was written from each.
func (w *world) withOverlays() *world {
	w.t.Helper()
	w.withSeries().withReleases().fetched()
	w.ok("apply")
	w.commit("model/old.go", "package model\n", "model: for old releases\n\nReason: test\nReleases: v0.16.0-v0.17.0")
	require.Equal(w.t, "new v0.16.0-v0.17.0/0001-model-for-old-releases.patch\n", w.ok("format"))

	w.ok("fetch", "--src", w.clone, "--version", "v0.18.0", "--dir", newDir)
	w.ok("apply", "--dir", newDir)
	w.commitIn(newDir, "model/new.go", "model: for new releases\n\nReleases: v0.18.0-v0.20.0")
	require.Equal(w.t, "new v0.18.0-v0.20.0/0001-model-for-new-releases.patch\n", w.ok("format", "--dir", newDir))
	return w
}

func (w *world) commitIn(dir, name, message string) {
	w.t.Helper()
	src := w.path(dir + "/src")
	w.write(src, name, "package model\n")
	w.git(src, "add", "--all")
	w.git(src, "commit", "--quiet", "--message", message)
}

func TestOverlaysAreForTheirReleases(t *testing.T) {
	w := newWorld(t).withOverlays()
	require.Equal(t, []string{
		"v0.16.0 3 yes yes - -", "v0.16.1 3 yes yes - -", "v0.16.2 3 yes yes - -", "v0.17.4 2 no - - -", "v0.18.0 3 yes yes - -",
	}, tableLines(w.run("check", "--all", "--src", w.clone).stdout)[1:6])

	for version, file := range map[string]string{"v0.16.0": "model/old.go", "v0.18.0": "model/new.go"} {
		dir := "again/" + version
		w.ok("fetch", "--src", w.clone, "--version", version, "--dir", dir)
		require.Equal(t, "Ollama "+version+": 3 patches applied\n", w.ok("apply", "--dir", dir))
		models, err := os.ReadDir(w.path(dir + "/src/model"))
		require.NoError(t, err)
		require.Len(t, models, 1)
		require.Equal(t, filepath.Base(file), models[0].Name())
		require.Contains(t, w.ok("status", "--dir", dir), "3/3 applied\n")
		require.Equal(t, "Ollama "+version+" is as released\n", w.ok("revert", "--dir", dir))
		require.NoDirExists(t, w.path(dir+"/src/model"))
	}
}

// A patch is written from the trees of one release only, so that two developers write the
// same bytes.
func TestOverlaysAreWrittenAtHome(t *testing.T) {
	w := newWorld(t).withOverlays()
	patches := map[string]string{}
	for _, name := range []string{firstPatch, secondPatch, oldOverlay, newOverlay} {
		patches[name] = w.read(w.path(name))
	}
	for _, dir := range []string{"build/ollama", newDir} {
		require.Contains(t, w.ok("status", "--dir", dir), "3/3 applied\n", dir)
		require.Equal(t, "patches and the commits agree\n", w.ok("format", "--dir", dir), dir)
		require.Equal(t, "patches and the commits agree\n", w.ok("format", "--check", "--dir", dir), dir)
		require.Contains(t, w.ok("apply", "--dir", dir), "3 patches already applied", dir)
	}
	// v0.16.0 is the home of no patch.
	w.ok("fetch", "--src", w.clone, "--version", "v0.16.0", "--dir", "other")
	w.ok("apply", "--dir", "other")
	w.commitIn("other", "model/more.go", "model: more\n\nReleases: v0.16.0-v0.17.0")
	require.Contains(t, w.refused("format", "--dir", "other"), "the commit of v0.16.0-v0.17.0/0002-model-more.patch in other/src, which holds Ollama v0.16.0, is not as in patches, and it is written from a tree of v0.16.1")
	for name, text := range patches {
		require.Equal(t, text, w.read(w.path(name)), name)
	}
}

// A change to a common patch would be lost in a tree from which the patch is not written.
func TestFormatRefusesPatchesOfAnotherHome(t *testing.T) {
	w := newWorld(t).withOverlays()
	src := w.path(newDir + "/src")
	w.git(src, "revert", "--no-edit", "HEAD~1")
	w.git(src, "reset", "--quiet", "--soft", "HEAD~3")
	w.git(src, "commit", "--quiet", "--message", "kvcache: add another half")
	require.Contains(t, w.refused("format", "--dir", newDir), "is not as in patches, and it is written from a tree of v0.16.1")
	w.git(src, "reset", "--quiet", "--hard", "upstream")
	require.Equal(t, "0001-main-greet.patch is not applied to build/v0.18.0/src; run patch-ollama apply first", w.refused("format", "--dir", newDir))
	require.FileExists(t, w.path(newOverlay))
}

func TestOverlayFoldersAreChecked(t *testing.T) {
	w := newWorld(t).withOverlays()
	rename := func(from, to string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(w.path(to)), 0o755))
		require.NoError(t, os.Rename(w.path(from), w.path(to)))
	}
	for to, want := range map[string]string{
		"patches/v0.17/0001-a.patch":    `the folder patches/v0.17: "v0.17" is not a range of releases, such as v0.17.1+ or v0.16.0-v0.17.0`,
		"patches/v0.16.1+/0001-a.patch": `patches/v0.16.1+/0001-a.patch: its trailer "Releases: v0.16.0-v0.17.0" puts it into a folder v0.16.0-v0.17.0`,
		"patches/0003-a.patch":          `patches/0003-a.patch: its trailer "Releases: v0.16.0-v0.17.0" puts it into a folder v0.16.0-v0.17.0`,
	} {
		rename(oldOverlay, to)
		require.Contains(t, w.refused("apply"), want)
		rename(to, oldOverlay)
		if dir := filepath.Dir(w.path(to)); dir != w.path("patches") {
			require.NoError(t, os.Remove(dir))
		}
	}
	w.write(w.root, oldOverlay, strings.Replace(w.read(w.path(oldOverlay)), "Releases: ", "Released: ", 1))
	require.Contains(t, w.refused("apply"), `needs the trailer "Releases: v0.16.0-v0.17.0"`)
	w.write(w.root, "patches/attic/0001-kept-aside.patch", "no patch")
	require.Contains(t, w.ok("status", "--dir", newDir), "3/3 applied\n", "a folder that is no overlay, and one for other releases")
}
