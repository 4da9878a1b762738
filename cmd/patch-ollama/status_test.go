package main

import (
	"encoding/json"
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
	require.Contains(t, w.ok("status"), "patches     0/2 applied\ntree        clean\n")
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

func TestStatusJSON(t *testing.T) {
	w := newWorld(t).withSeries().fetched()
	w.ok("apply")
	var s status
	require.NoError(t, json.Unmarshal([]byte(w.ok("status", "--json")), &s))
	require.Equal(t, status{
		Dir: w.path("build/ollama"), Fetched: true, Version: "v0.16.1",
		Origin: "clone " + w.git(w.clone, "rev-parse", "v0.16.1"),
		Base:   w.git(w.src(""), "rev-parse", "upstream"), Head: w.head(),
		Patches: patches{Total: 2, Applied: 2, InStep: true, Without: []string{}},
		Dirty:   []string{}, Libraries: []string{},
	}, s)
}
