package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// greetTest passes only in a tree whose series is applied and whose workspace
// finds kvtier.
const greetTest = `package main

import (
	"testing"

	"github.com/kvtier/kvtier/greet"
)

func TestGreet(t *testing.T) {
	if greet.Hello != "hello" {
		t.Error(greet.Hello)
	}
}

func TestFails(t *testing.T) { t.Error("as it should") }
`

func TestTest(t *testing.T) {
	w := newWorld(t).withSeries().forBuild()
	w.ok("fetch", "--src", w.clone)
	w.write(w.src(""), "greet_test.go", greetTest)
	require.Contains(t, w.refused("test"), "has uncommitted changes (?? greet_test.go)")
	require.Contains(t, w.ok("test", "--allow-dirty", "--", "-run", "TestGreet", "."), "ok  \tgithub.com/ollama/ollama\t")

	r := w.run("test", "--allow-dirty", "--", "-run", "TestFails", ".")
	require.Equal(t, 1, r.status)
	require.Contains(t, r.stdout, "as it should")
	require.Contains(t, r.stdout, "FAIL\tgithub.com/ollama/ollama\t")
	require.Contains(t, r.stderr, "Error: running go test in build/ollama/src: exit status 1")
}

// Without arguments, the packages that the series touches are tested.
func TestTestDefaultPackages(t *testing.T) {
	w := newWorld(t).withSeries().forBuild()
	w.ok("fetch", "--src", w.clone)
	require.Equal(t, []string{"github.com/ollama/ollama", "github.com/ollama/ollama/kvcache"}, testedPackages(w.ok("test")))
	require.Contains(t, w.ok("status"), "2/2 applied")
}

// testedPackages reads the lines of packages without tests.
func testedPackages(out string) []string {
	var packages []string
	for line := range strings.Lines(out) {
		if name, found := strings.CutSuffix(strings.TrimSpace(line), "[no test files]"); found {
			packages = append(packages, strings.Trim(name, "?\t "))
		}
	}
	return packages
}
