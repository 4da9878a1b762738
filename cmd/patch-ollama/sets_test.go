package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamasrc"
)

const (
	pagedPatch   = "patches/optional/paged/0001-kvcache-pages.patch"
	elasticPatch = "patches/optional/elastic/0001-kvcache-elastic-memory.patch"
)

// withSets has a patched tree of v0.16.1 and two optional sets that were written from it, each
// of which makes a file and changes a line of its own.
func (w *world) withSets() *world {
	w.t.Helper()
	w.withSeries().fetched()
	w.ok("apply")
	for _, set := range []struct{ name, line, subject string }{
		{"elastic", "// one", "kvcache: elastic memory"}, {"paged", "// six", "kvcache: pages"},
	} {
		causal := w.read(w.src("kvcache/causal.go"))
		w.write(w.src(""), "kvcache/causal.go", strings.Replace(causal, set.line, set.line+" "+set.name, 1))
		w.commit("kvcache/"+set.name+".go", "package kvcache\n", set.subject+"\n\nReason: test\nSet: "+set.name)
	}
	require.Equal(w.t, "new optional/elastic/0001-kvcache-elastic-memory.patch\nnew optional/paged/0001-kvcache-pages.patch\n", w.ok("format"))
	return w
}

func (w *world) hasSets(names ...string) {
	w.t.Helper()
	causal := w.read(w.src("kvcache/causal.go"))
	require.Contains(w.t, causal, "// and a half", "the common patches")
	for _, name := range []string{"elastic", "paged"} {
		_, err := os.Stat(w.src("kvcache/" + name + ".go"))
		want := strings.Contains(strings.Join(names, " "), name)
		require.Equal(w.t, want, err == nil, name)
		require.Equal(w.t, want, strings.Contains(causal, " "+name), name)
	}
}

func TestSetsCanBeLeftOut(t *testing.T) {
	w := newWorld(t).withSets()
	w.hasSets("elastic", "paged")
	for _, tc := range []struct{ without, applied, status, sets string }{
		{"paged,paged", "3 patches applied", "3/3 applied, without paged\n", "elastic"},
		{"elastic", "3 patches applied", "3/3 applied, without elastic\n", "paged"},
		{"paged,elastic", "2 patches applied", "2/2 applied, without elastic, paged\n", ""},
		{"none", "4 patches applied", "4/4 applied\n", "elastic paged"},
	} {
		require.Equal(t, "Ollama v0.16.1: "+tc.applied+"\n", w.ok("apply", "--without", tc.without), tc.without)
		w.hasSets(strings.Fields(tc.sets)...)
		require.Contains(t, w.ok("status"), "patches     "+tc.status, tc.without)
		// every verb follows the choice
		require.Contains(t, w.ok("apply"), "already applied", tc.without)
		require.Equal(t, "patches and the commits agree\n", w.ok("format", "--check"), tc.without)
		require.Equal(t, "patches and the commits agree\n", w.ok("format"), tc.without)
		w.hasSets(strings.Fields(tc.sets)...)
		require.FileExists(t, w.path(pagedPatch))
		require.FileExists(t, w.path(elasticPatch))
	}
}

func TestRevertForgetsSets(t *testing.T) {
	w := newWorld(t).withSets()
	w.ok("apply", "--without", "paged")
	require.Equal(t, "Ollama v0.16.1 is as released\n", w.ok("revert"))
	require.Contains(t, w.ok("status"), "0/4 applied\n")
	w.ok("apply")
	w.hasSets("elastic", "paged")
}

// Taking a set off must not take off commits that are in no patch.
func TestLeavingSetsOutKeepsOwnCommits(t *testing.T) {
	w := newWorld(t).withSets()
	w.commit("own.go", "package main\n", "main: own work")
	head := w.head()
	require.Contains(t, w.refused("apply", "--without", "paged"), "has 1 commit that patches/ does not hold")
	require.Equal(t, head, w.head())
	require.Contains(t, w.ok("status"), "4/4 applied, 1 commit of your own\n")
}

// In a tree without a set, patches of the others are changed as ever, and those of the set
// stay.
func TestFormatWithoutASet(t *testing.T) {
	w := newWorld(t).withSets()
	w.ok("apply", "--without", "paged,elastic")
	paged := w.read(w.path(pagedPatch))
	w.commit("more.go", "package main\n", "main: more")
	require.Equal(t, "new 0003-main-more.patch\n", w.ok("format"))
	require.Equal(t, paged, w.read(w.path(pagedPatch)))
	require.Contains(t, w.ok("status"), "3/3 applied, without elastic, paged\n")

	w.commit("kvcache/paged.go", "package kvcache\n", "kvcache: other pages\n\nSet: paged")
	require.Contains(t, w.refused("format"), `the commit "kvcache: other pages" is of the set paged, and build/ollama/src was patched without that set; put the set on first, with patch-ollama apply --without elastic`)
	require.Equal(t, paged, w.read(w.path(pagedPatch)))
	w.git(w.src(""), "reset", "--quiet", "--hard", "HEAD~1")

	w.ok("apply", "--without", "elastic")
	w.commit("kvcache/paged.go", "package kvcache\n\n// other pages\n", "kvcache: other pages\n\nSet: paged")
	require.Contains(t, w.refused("format"), "the commit of optional/paged/0002-kvcache-other-pages.patch in build/ollama/src, which holds Ollama v0.16.1, is not as in patches, and it is written from a tree of v0.16.1 with all optional sets")
	w.git(w.src(""), "reset", "--quiet", "--hard", "HEAD~1")
	require.Equal(t, "Ollama v0.16.1: 5 patches applied\n", w.ok("apply", "--without", "none"))
	w.hasSets("elastic", "paged")
}

func TestFormatDropsAnEmptySet(t *testing.T) {
	w := newWorld(t).withSets()
	w.git(w.src(""), "reset", "--quiet", "--hard", "HEAD~1")
	require.Equal(t, "stale optional/paged/0001-kvcache-pages.patch\n", w.ok("format"))
	require.NoDirExists(t, filepath.Dir(w.path(pagedPatch)))
	require.FileExists(t, w.path(elasticPatch))
	w.git(w.src(""), "reset", "--quiet", "--hard", "HEAD~1")
	w.ok("format")
	require.NoDirExists(t, w.path("patches/optional"))
	require.FileExists(t, w.path(firstPatch))
}

func TestFormatRefusesTrailers(t *testing.T) {
	w := newWorld(t).withSets()
	for message, want := range map[string]string{
		"model: x\n\nReleases: v0.17\n":           `the trailer of the commit "model: x": "v0.17" is not a range of releases`,
		"model: y\n\nReleases: v0.18.0-v0.20.0\n": `the commit "model: y" is for v0.18.0-v0.20.0, but build/ollama/src holds Ollama v0.16.1`,
		"model: z\n\nReleases: v0.16.1-v0.30.0\n": `v0.30 and later drive llama-server`,
		"model: a\n":                                      `the commit "kvcache: pages" stands before "model: a", but patches for all releases are applied first and overlays after them, by where they begin, and optional sets last, by name`,
		"model: b\n\nReleases: v0.16.1+\n":                `the commit "kvcache: pages" stands before "model: b"`,
		"model: c\n\nSet: elastic\n":                      `the commit "kvcache: pages" stands before "model: c"`,
		"model: d\n\nSet: Paged!\n":                       `the trailer of the commit "model: d": "Paged!" is not the name of an optional set; write it in small letters, such as paged`,
		"model: e\n\nSet: paged\nReleases: v0.16.1+\n":    `the trailer of the commit "model: e": a patch is for some releases or of one optional set, and not of several`,
		"model: f\n\nSet: paged\nSet: quicker\n":          `and not of several`,
		"model: g\n\nReleases: v0.16.1+\nReleases: v0.17": `and not of several`,
	} {
		w.commit("model/more.go", "package model\n", message)
		require.Contains(t, w.refused("format"), want, message)
		w.git(w.src(""), "reset", "--quiet", "--hard", "HEAD~1")
	}
}

func TestSetFoldersAreChecked(t *testing.T) {
	w := newWorld(t).withSets()
	text := w.read(w.path(pagedPatch))
	for trailer, want := range map[string]string{
		"":                    `patches/optional/paged/0001-kvcache-pages.patch: the message of a patch in this folder needs the trailer "Set: paged"`,
		"Set: elastic":        `its trailer "Set: elastic" puts it into a folder optional/elastic`,
		"Releases: v0.17.1+":  `its trailer "Releases: v0.17.1+" puts it into a folder v0.17.1+`,
		"Releases: v0.17.1++": `its trailer: "v0.17.1++" is not a range of releases`,
	} {
		w.write(w.root, pagedPatch, strings.Replace(text, "Set: paged", trailer, 1))
		require.Contains(t, w.refused("apply"), want)
		require.Equal(t, "Ollama v0.16.1: 3 patches applied\n", w.ok("apply", "--without", "paged"), "a set that is left out is not read")
		require.Contains(t, w.refused("apply", "--without", "none"), want)
		w.write(w.root, pagedPatch, text)
		w.ok("apply", "--without", "none")
	}
	w.write(w.root, "patches/0003-pages.patch", text)
	require.Contains(t, w.refused("apply"), `patches/0003-pages.patch: its trailer "Set: paged" puts it into a folder optional/paged`)
}

// Check looks at the patches folder alone, and shows sets that need each other.
func TestCheckWithoutSets(t *testing.T) {
	w := newWorld(t).withSets()
	line := func(args ...string) string {
		r := w.run(append([]string{"check", "--src", w.clone}, args...)...)
		return strings.Join(tableLines(r.stdout)[1:], "; ")
	}
	w.ok("apply", "--without", "elastic")
	require.Equal(t, "v0.16.1 4 yes yes - -", line())
	require.Equal(t, "v0.16.1 3 yes yes - -", line("--without", "paged"))
	require.Equal(t, "v0.16.1 2 yes yes - -", line("--without", "elastic,paged"))
	w.ok("apply", "--without", "none")
	w.commit("kvcache/elastic.go", "package kvcache\n\n// needs the other set\n", "kvcache: both\n\nSet: paged")
	w.ok("format")
	require.Equal(t, "v0.16.1 5 yes yes - -", line())
	require.Equal(t, "v0.16.1 4 no - - -; v0.16.1: optional/paged/0002-kvcache-both.patch: kvcache/elastic.go: does not exist in index", line("--without", "elastic"))
}

// The version of the binary names the sets that are left out.
func TestBuildWithoutASet(t *testing.T) {
	w := newWorld(t).withSets().forBuild()
	want := func(leftOut ...string) string {
		return "build/ollama/bin/ollama " + ollamasrc.BuildVersion(t.Context(), w.root, "v0.16.1", leftOut...) + "\n"
	}
	require.Equal(t, want("paged"), w.ok("build", "--without", "paged"))
	require.Contains(t, want("paged"), ".without-paged\n")
	require.Equal(t, want("paged"), w.ok("build"), "the choice stays")
	w.hasSets("elastic")
	require.Equal(t, want(), w.ok("build", "--without", "none"))
	w.hasSets("elastic", "paged")
}
