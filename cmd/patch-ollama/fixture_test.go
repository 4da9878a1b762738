package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/cli"
	"github.com/kvtier/kvtier/internal/cli/clitest"
)

// TestMain is also the fake cmake, when the test binary runs under that name.
func TestMain(m *testing.M) {
	if strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") == "cmake" {
		os.Exit(fakeCMake(os.Args[1:]))
	}
	os.Exit(testscript.RunMain(m, map[string]func() int{"patch-ollama": mainStatus}))
}

// TestScripts runs the command as users do. Scripts have the additional command exits.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:  filepath.Join("testdata", "script"),
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": clitest.Exits},
	})
}

// upstreamFiles is the smallest Ollama that patch-ollama can build.
var upstreamFiles = map[string]string{
	"go.mod":  "module github.com/ollama/ollama\n\ngo 1.24.1\n",
	"main.go": "package main\n\nimport (\n\t\"fmt\"\n\n\t\"github.com/ollama/ollama/version\"\n)\n\nfunc main() {\n\tfmt.Println(\"Warning: client version is\", version.Version)\n}\n",

	"version/version.go": "package version\n\nvar Version = \"0.0.0\"\n",
	"kvcache/causal.go":  "package kvcache\n\n// one\n// two\n// three\n// four\n// five\n// six\n",
	"CMakeLists.txt":     "project(Ollama)\n",
	".gitignore":         "dist\n",
	"dist/kept.txt":      "a release may contain what it ignores\n",

	"ml/backend/ggml/ggml.c":              "int ggml;\n",
	"llama/llama.cpp/vendor/stb/stb.h":    "// stb\n",
	"scripts/build.sh":                    "#!/bin/sh\n",
	"ml/backend/ggml/ggml/include/ggml.h": "#define GGML 1\n",
}

// world is a kvtier checkout and a clone of a small Ollama, in temporary
// folders.
type world struct {
	t     *testing.T
	root  string // kvtier, the working directory
	clone string
}

// newWorld tags the same files v0.16.1 and v0.16.2, then a v0.17.4 whose causal.go fits no
// patch of the series, and tags out of range.
func newWorld(t *testing.T) *world {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	w := &world{t: t, root: filepath.Join(base, "kvtier"), clone: filepath.Join(base, "clone")}
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	t.Setenv("CPATH", "")

	w.write(w.root, "go.mod", "module github.com/kvtier/kvtier\n\ngo 1.24.1\n")
	w.write(w.root, "greet/greet.go", "package greet\n\nconst Hello = \"hello\"\n")
	for name, text := range upstreamFiles {
		w.write(w.clone, name, text)
	}
	w.git(w.clone, "init", "--quiet")
	w.git(w.clone, "add", "--all", "--force")
	w.git(w.clone, "update-index", "--chmod=+x", "scripts/build.sh")
	w.git(w.clone, "commit", "--quiet", "--message", "release")
	for _, tag := range []string{"v0.15.6", "v0.16.1-rc0", "v0.16.1", "v0.16.2", "v0.30.0"} {
		w.git(w.clone, "tag", tag)
	}
	w.release("v0.17.4", "kvcache/causal.go", "package kvcache\n\n// rewritten\n")
	t.Chdir(w.root)
	return w
}

// release changes a file of the clone, and tags the commit.
func (w *world) release(tag, name, text string) {
	w.t.Helper()
	w.write(w.clone, name, text)
	w.git(w.clone, "add", "--all")
	w.git(w.clone, "commit", "--quiet", "--message", "release "+tag)
	w.git(w.clone, "tag", tag)
}

// withSeries writes two patches: a new file that imports kvtier, and a hunk.
func (w *world) withSeries() *world {
	w.t.Helper()
	work := filepath.Join(w.t.TempDir(), "work")
	w.git(w.root, "clone", "--quiet", w.clone, work)
	w.git(work, "checkout", "--quiet", "-b", "series", "v0.16.1")
	w.write(work, "greet.go", "package main\n\nimport \"github.com/kvtier/kvtier/greet\"\n\nfunc init() { println(greet.Hello) }\n")
	w.git(work, "add", "--all")
	w.git(work, "commit", "--quiet", "--message", "main: greet\n\nBecause of the tests.\n\nReason: test\n")
	w.write(work, "kvcache/causal.go", "package kvcache\n\n// one\n// two\n// three\n// and a half\n// four\n// five\n// six\n")
	w.git(work, "commit", "--quiet", "--all", "--message", "kvcache: add half")
	w.git(work, "-c", "core.abbrev=12", "format-patch", "--quiet", "--no-signature", "--no-numbered", "--zero-commit",
		"--output-directory", w.path("patches"), "v0.16.1..HEAD")
	w.write(w.root, "patches/README.md", "not a patch\n")
	return w
}

const (
	firstPatch  = "patches/0001-main-greet.patch"
	secondPatch = "patches/0002-kvcache-add-half.patch"
)

// fetched materializes the clone's v0.16.1.
func (w *world) fetched() *world {
	w.t.Helper()
	w.ok("fetch", "--src", w.clone)
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.root, filepath.FromSlash(name)) }
func (w *world) src(name string) string  { return w.path("build/ollama/src/" + name) }

func (w *world) write(dir, name, text string) {
	w.t.Helper()
	path := filepath.Join(dir, filepath.FromSlash(name))
	require.NoError(w.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(w.t, os.WriteFile(path, []byte(text), 0o644))
}

func (w *world) read(path string) string {
	w.t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(w.t, err)
	return string(data)
}

// Patches have this sender; who commits otherwise does not matter to them.
const author, authorEmail = "kvtier", "kvtier@users.noreply.github.com"

func (w *world) git(dir string, args ...string) string {
	w.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(),
		"GIT_AUTHOR_NAME="+author, "GIT_AUTHOR_EMAIL="+authorEmail, "GIT_AUTHOR_DATE=2025-01-02T03:04:05Z",
		"GIT_COMMITTER_NAME=c", "GIT_COMMITTER_EMAIL=c@example.com")
	out, err := cmd.CombinedOutput()
	require.NoError(w.t, err, "git %v: %s", args, out)
	return strings.TrimSpace(string(out))
}

// commit makes a commit of the user's in the source.
func (w *world) commit(name, text, subject string) {
	w.t.Helper()
	w.write(w.src(""), name, text)
	w.git(w.src(""), "add", "--all")
	w.git(w.src(""), "commit", "--quiet", "--message", subject)
}

func (w *world) head() string { return w.git(w.src(""), "rev-parse", "HEAD") }

// result is the outcome of a command line.
type result struct {
	stdout, stderr string
	status         int
}

func (w *world) run(args ...string) result {
	return w.runContext(context.Background(), args...)
}

func (w *world) runContext(ctx context.Context, args ...string) result {
	var stdout, stderr bytes.Buffer
	status := run(ctx, args, &stdout, &stderr)
	return result{stdout.String(), stderr.String(), status}
}

// ok runs a command line that must succeed and returns its standard output.
func (w *world) ok(args ...string) string {
	w.t.Helper()
	r := w.run(args...)
	require.Zero(w.t, r.status, "%v: %s", args, r.stderr)
	return r.stdout
}

// refused runs a command line that must fail with one sentence and returns the
// sentence.
func (w *world) refused(args ...string) string {
	w.t.Helper()
	return w.failed(cli.Failed, args...)
}

// failed runs a command line that must end with a status, and returns the sentence.
func (w *world) failed(status int, args ...string) string {
	w.t.Helper()
	r := w.run(args...)
	require.Equal(w.t, status, r.status, "%v: %s%s", args, r.stdout, r.stderr)
	i := strings.LastIndex(r.stderr, "Error: ")
	require.GreaterOrEqual(w.t, i, 0, r.stderr)
	return strings.TrimSpace(strings.TrimPrefix(r.stderr[i:], "Error: "))
}

// onlyTools sets PATH to a folder with only the named programs; cmake is the fake one.
func (w *world) onlyTools(names ...string) {
	w.t.Helper()
	bin := w.t.TempDir()
	for _, name := range names {
		target, err := os.Executable()
		if name != "cmake" {
			target, err = exec.LookPath(name)
		}
		require.NoError(w.t, err)
		require.NoError(w.t, os.Symlink(target, filepath.Join(bin, name)))
	}
	w.t.Setenv("PATH", bin)
	for _, name := range []string{"CC", "CXX", "CUDACXX", "CUDA_PATH", "CUDA_HOME"} {
		w.t.Setenv(name, "")
	}
}
