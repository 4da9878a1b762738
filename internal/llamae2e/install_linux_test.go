package llamae2e

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
	"github.com/kvtier/kvtier/internal/trial"
	"github.com/kvtier/kvtier/llamatier/install"
)

// TestInstall: a stock Ollama in a folder of its own gets our llama-server and loses it again,
// while its server runs. It answers all the time, and stores pages only between.
func TestInstall(t *testing.T) {
	prefix, kit := filepath.Join(t.TempDir(), "ollama"), t.TempDir()
	out, err := exec.Command("cp", "-a", tree(t), prefix).CombinedOutput()
	require.NoError(t, err, string(out))
	prefix, err = filepath.EvalSymlinks(prefix)
	require.NoError(t, err)
	lib := filepath.Join(prefix, "lib", "ollama")
	ours := filepath.Join(kit, "kvtier")
	require.NoError(t, exec.Command("mv", filepath.Join(lib, "llama-server"), ours).Run())
	require.NoError(t, os.Rename(filepath.Join(lib, install.RealName), filepath.Join(lib, "llama-server")))

	t.Setenv("PATH", kit+":"+os.Getenv("PATH")) // kvtier is there, so install puts no link into this machine
	t.Setenv(ollamatest.BinaryEnv, filepath.Join(prefix, "bin", "ollama"))
	root := filepath.Join(t.TempDir(), "pages")
	require.NoError(t, os.Mkdir(root, 0o700))
	s := ollamatest.ForTest(t, ollamatest.Options{Env: []string{
		"OLLAMA_KV_TIERING=1", "OLLAMA_KV_TIER_LOCAL=" + root, "KVTIER_LLAMA_LOG=" + root + ".log", "OLLAMA_NUM_PARALLEL=1",
	}})
	path := aModel(t, testmodel.Shape{Arch: "qwen3"})
	require.NoError(t, s.CreateModel(t.Context(), "m", path, testmodel.Modelfile(path)))
	ask := func(words string) string {
		r, err := s.Generate(t.Context(), ollamatest.Request{
			Model: "m", Prompt: strings.Repeat(words, 60), Raw: true, Options: ollamatest.Greedy(20, 4096),
		})
		require.NoError(t, err)
		require.NoError(t, s.Unload(t.Context(), "m"))
		return r.Text
	}
	want := ask("The quick brown fox jumps over the lazy dog. ")
	require.Zero(t, pages(t, root))

	m, choice := install.Here(), install.Choice{Prefix: prefix}
	p, err := m.Install(t.Context(), install.Options{Choice: choice, Program: ours})
	require.NoError(t, err)
	require.NoError(t, p.Do(t.Context(), func(install.Step) {}))
	require.Equal(t, want, ask("The quick brown fox jumps over the lazy dog. "))
	require.Equal(t, want, ask("The quick brown fox jumps over the lazy dog. "))
	stored := pages(t, root)
	require.Positive(t, stored)
	all, err := m.Status(t.Context(), choice, s.URL().Host)
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, install.Installed, all[0].State, all[0].Hints)
	require.Equal(t, "on", all[0].Tiering)
	require.Equal(t, root, all[0].Pages)
	require.Contains(t, all[0].LastLog, "kv tier: on")

	p, err = m.Remove(t.Context(), choice)
	require.NoError(t, err)
	require.NoError(t, p.Do(t.Context(), func(install.Step) {}))
	ask("A slow green turtle walks under the busy cat. ")
	require.Equal(t, stored, pages(t, root))
	require.NoFileExists(t, filepath.Join(lib, install.RealName))
}

// TestTry: what kvtier try shows on a stock Ollama, with kvtier and without.
func TestTry(t *testing.T) {
	for _, tiering := range []string{"1", "0"} {
		o := &ollama{t: t}
		o.start("qwen3", []string{"m"}, "OLLAMA_KV_TIERING="+tiering)
		c := &trial.Ollama{URL: o.URL().String(), HTTP: http.DefaultClient}
		require.NoError(t, c.Choose(t.Context(), ""))
		r, err := trial.Run(t.Context(), c, step)
		require.NoError(t, err)
		require.Equal(t, "m:latest", r.Model)
		require.Equal(t, tiering == "1", r.Restored())
		require.Greater(t, r.Rows[0].Tokens, 1000)
		require.Less(t, *r.Rows[0].Reused, 10, "nobody has asked it before")
		require.True(t, r.Rows[2].Same)
	}
}

func step(_ string, do func() error) error { return do() }

// TestTryFile: what kvtier try shows with a llama-server alone, and of one that cannot load the file.
func TestTryFile(t *testing.T) {
	program := filepath.Join(tree(t), "lib", "ollama", "llama-server")
	serve := []string{program, "serve", "--root", t.TempDir(), "--", program + "-real"}
	s := &trial.Alone{File: aModel(t, testmodel.Shape{Arch: "qwen3"}), Window: 2048, Serve: serve}
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, s.Start(t.Context()))
	r, err := trial.Run(t.Context(), s, step)
	require.NoError(t, err)
	require.Equal(t, "qwen3", r.Model)
	require.True(t, r.Restored())
	require.Greater(t, r.Rows[0].Tokens, 500)
	require.Less(t, *r.Rows[0].Reused, 10)
	require.True(t, r.Rows[2].Same)

	none := &trial.Alone{File: program, Serve: serve}
	require.ErrorContains(t, none.Start(t.Context()), "ended before it had loaded")
	require.NoError(t, none.Close())
}
