package ollamasrc

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/version"
)

// TestSourceVersion: the version follows the files of the binary, and the tags of releases.
func TestSourceVersion(t *testing.T) {
	outer, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	root := filepath.Join(outer, "kvtier")
	repository := func(dir string) func(args ...string) string {
		return func(args ...string) string {
			t.Helper()
			out, err := git{dir: dir, own: true}.run(t.Context(), args...)
			require.NoError(t, err)
			return out
		}
	}
	commit := func(name, text string) string {
		t.Helper()
		write(t, filepath.Join(root, name), text)
		git := repository(root)
		git("add", "--all")
		git("commit", "--quiet", "--message", name)
		return git("rev-parse", "HEAD")
	}
	got := func() string { return SourceVersion(t.Context(), root) }

	write(t, filepath.Join(root, "go.mod"), "module m\n")
	require.Equal(t, version.Unreleased, got(), "no repository")
	repository(outer)("init", "--quiet")
	repository(outer)("add", "--all")
	repository(outer)("commit", "--quiet", "--message", "another repository")
	require.Equal(t, version.Unreleased, got(), "a repository around it")

	git := repository(root)
	git("init", "--quiet")
	require.Equal(t, version.Unreleased, got(), "no commit")
	first := commit("kvcache/a.go", "package a\n")
	require.Equal(t, version.OfCommit(first, false), got())
	commit("README.md", "read")
	commit("docs/more.md", "read")
	commit("kvcache/a_test.go", "package a\n")
	commit("diskstore/testdata/golden/page", "x")
	commit("patches/README.md", "read")
	commit("cmd/kvtier/main.go", "package main\n")
	commit("internal/bench/show/main.go", "package show\n")
	require.Equal(t, version.OfCommit(first, false), got(), "none of these is in the binary")

	git("tag", "--annotate", "--message", "release", "v0.3.0")
	require.Equal(t, "0.3.0", got())
	commit("README.md", "more")
	require.Equal(t, "0.3.0", got())
	write(t, filepath.Join(root, "diskstore/new.go"), "package b\n")
	require.Equal(t, version.OfCommit(first, true), got())
	second := commit("diskstore/new.go", "package b\n")
	require.Equal(t, version.OfCommit(second, false), got())
	git("tag", "nightly")
	require.Equal(t, version.OfCommit(second, false), got(), "no release's tag")
	for _, name := range []string{"patches/0001-a.patch", "internal/anew/a.go"} {
		hash := commit(name, "x")
		require.Equal(t, version.OfCommit(hash, false), got(), name)
	}
}

// TestLinked: the version follows the files of every package of the binary.
func TestLinked(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./kvcache/tiering", "./kvcache/paging", "./ggml-paged/pager")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	require.NoError(t, err)
	packages := 0
	for path := range strings.FieldsSeq(string(out)) {
		name, ours := strings.CutPrefix(path, "github.com/kvtier/kvtier/")
		if !ours {
			continue
		}
		packages++
		covered := false
		for _, folder := range linked {
			covered = covered || name == folder || strings.HasPrefix(name, folder+"/")
			if left, ok := strings.CutPrefix(folder, ":(exclude,glob)"); ok {
				require.NotEqual(t, strings.TrimSuffix(left, "/**"), name)
			}
		}
		require.True(t, covered, name)
	}
	require.Greater(t, packages, 5)
}
