package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStatusOfNothing(t *testing.T) {
	w := newWorld(t).withSeries()
	require.Equal(t, `version     none; run patch-ollama fetch
binary      none; run patch-ollama build
libraries   none
`, w.ok("status"))
	require.NoDirExists(t, w.path("build"))
}

func TestStatus(t *testing.T) {
	w := newWorld(t).withSeries().fetched()
	require.Equal(t, "version     v0.16.1\nsource      clone "+w.git(w.clone, "rev-parse", "v0.16.1")+"\nbase        "+w.head()[:12]+
		"\npatches     0/2 applied\ntree        clean\nbinary      none; run patch-ollama build\nlibraries   none\n", w.ok("status"))
	w.ok("apply")
	require.Contains(t, w.ok("status"), "patches     2/2 applied\n")
	w.commit("own.go", "package main\n", "main: own work")
	w.write(w.src(""), "notes.txt", "mine")
	require.Contains(t, w.ok("status"), "patches     2/2 applied, 1 commit of your own\ntree        1 change uncommitted\n")
	w.write(w.root, "patches/0003-more.patch", "From 0\n")
	require.Contains(t, w.ok("status"), "2/3 applied, of an older series, 1 commit of your own\n")
}

func TestStatusBrokenBinary(t *testing.T) {
	w := newWorld(t)
	w.write(w.path("build/ollama"), "bin/ollama", "not a program")
	w.write(w.path("build/ollama"), "bin/ollama.exe", "not a program")
	require.Regexp(t, `binary      build/ollama/bin/ollama(\.exe)? does not run; run patch-ollama build\n`, w.ok("status"))
}
