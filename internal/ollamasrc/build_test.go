package ollamasrc

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCMakeProgress(t *testing.T) {
	for line, want := range map[string][2]int{
		"[12/345] Building CXX object a.o": {12, 345},
		"[ 12%] Building CXX object a.o":   {12, 100},
		"[100%] Built target ggml-base":    {100, 100},
	} {
		done, total, ok := cmakeProgress(line)
		require.True(t, ok, line)
		require.Equal(t, want, [2]int{done, total}, line)
	}
	for _, line := range []string{"", "-- Configuring done", "[0/0] Re-checking", "warning: a[1/2] "} {
		_, _, ok := cmakeProgress(line)
		require.False(t, ok, line)
	}
}

func TestIsPackageLine(t *testing.T) {
	require.True(t, isPackageLine("github.com/ollama/ollama/llama"))
	require.True(t, isPackageLine("unicode/utf8"))
	for _, line := range []string{"", "# github.com/ollama/ollama/llama", "ggml.c:3:1: warning: x", "   12 | int x;", "ld: warning"} {
		require.False(t, isPackageLine(line), line)
	}
}

func TestLineWriter(t *testing.T) {
	var log bytes.Buffer
	var lines []string
	w := &lineWriter{log: &log, watch: func(line string) { lines = append(lines, line) }}
	for _, part := range []string{"[1/", "2] one\n[2/2]", " two\rth", "ree"} {
		n, err := w.Write([]byte(part))
		require.NoError(t, err)
		require.Len(t, part, n)
	}
	require.Equal(t, []string{"[1/2] one", "[2/2] two"}, lines)
	require.Equal(t, "[1/2] one\n[2/2] two\rthree", log.String())
}

func TestDigestFiles(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "a", "x.h"), "1")
	write(t, filepath.Join(root, "a", "x.c"), "1")
	headers := func(name string) bool { return filepath.Ext(name) == ".h" }
	digest := func() string {
		d, err := digestFiles(root, []string{"a", "missing"}, headers)
		require.NoError(t, err)
		return d
	}
	first := digest()
	write(t, filepath.Join(root, "a", "x.c"), "2")
	require.Equal(t, first, digest(), "a file that is not kept")
	write(t, filepath.Join(root, "a", "x.h"), "2")
	second := digest()
	require.NotEqual(t, first, second)
	write(t, filepath.Join(root, "a", "y.h"), "")
	require.NotEqual(t, second, digest())
}

// A header that cgo does not track must change the build, too.
func TestGoCommandFollowsHeaders(t *testing.T) {
	t.Setenv("CGO_CPPFLAGS", "-DMINE")
	t.Setenv("GOFLAGS", "-tags=mine")
	lay := Layout{Root: t.TempDir(), Dir: t.TempDir()}
	b := &builder{lay: lay, tree: &Tree{Dir: lay.Src()}}
	header := filepath.Join(lay.Src(), "ml", "backend", "ggml", "ggml", "include", "ggml.h")
	flags := func() string {
		cmd, err := b.goCommand(t.Context(), "build")
		require.NoError(t, err)
		env := cmd.Env
		require.Contains(t, env, "GOFLAGS=-buildvcs=false")
		require.Contains(t, env, "GOWORK="+lay.GoWork())
		return env[len(env)-1]
	}
	write(t, header, "1")
	first := flags()
	require.Regexp(t, `^CGO_CPPFLAGS=-DMINE -DKVTIER_HEADERS=0x[0-9a-f]{8} '-I.*include'$`, first)
	write(t, header, "2")
	require.NotEqual(t, first, flags())
	write(t, filepath.Join(lay.Src(), "llama", "llama.cpp", "vendor", "x.h"), "")
	require.NotContains(t, flags(), "-I", "a clone has its own headers")
}

func TestSeriesPackages(t *testing.T) {
	patch := func(lines string) Patch { return Patch{Data: []byte("From 0\n" + lines)} }
	s := Series{Patches: []Patch{
		patch("diff --git a/server/routes.go b/server/routes.go\ndiff --git a/kvcache/rows.go b/kvcache/rows.go\n"),
		patch("diff --git a/kvcache/rows_test.go b/kvcache/rows_test.go\n diff --git a/not/this.go b/not/this.go\n"),
		patch("diff --git a/ml/backend/ggml/ggml/src/ggml.c b/ml/backend/ggml/ggml/src/ggml.c\n"),
		patch("diff --git a/main.go b/main.go\ndiff --git a/README.md b/README.md\n"),
	}}
	require.Equal(t, []string{".", "./kvcache", "./server"}, s.Packages())
	require.Empty(t, Series{}.Packages())
}

// These packages have the call sites in any series.
func TestPackagesOfTheSeries(t *testing.T) {
	s, err := LoadSeries("../../patches", DefaultVersion, nil)
	require.NoError(t, err)
	require.Subset(t, s.Packages(), []string{"./api", "./envconfig", "./kvcache", "./llm", "./ml/backend/ggml", "./runner/ollamarunner", "./server"})
}
