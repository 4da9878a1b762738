package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// With any fault of the store, requests succeed and the log reports the fault once.

func TestUnusableRootLeavesTieringOff(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	open := filepath.Join(t.TempDir(), "open")
	require.NoError(t, os.Mkdir(open, 0o700))
	require.NoError(t, os.Chmod(open, 0o777))
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(t.TempDir(), link))

	for name, env := range map[string]string{
		"not a directory":        "OLLAMA_KV_TIER_LOCAL=" + filepath.Join(file, "below"),
		"cannot be made":         "OLLAMA_KV_TIER_LOCAL=/proc/kvtier",
		"writable by everybody":  "OLLAMA_KV_TIER_LOCAL=" + open,
		"a symbolic link":        "OLLAMA_KV_TIER_LOCAL=" + link,
		"not absolute":           "OLLAMA_KV_TIER_LOCAL=pages",
		"a budget with no value": "OLLAMA_KV_TIER_LOCAL_GB=lots",
		"neither on nor off":     "OLLAMA_KV_TIERING=perhaps",
	} {
		t.Run(name, func(t *testing.T) {
			s := startIn(t, filepath.Join(t.TempDir(), "pages"), env)
			s.ask(prompt(t, 300, 1), 4)
			s.ask(prompt(t, 300, 2), 4)
			require.Equal(t, 1, strings.Count(s.Logs(), "kv tier: off for this model"))
			require.NotContains(t, s.Logs(), "kv tier: on")
			require.Empty(t, s.pages())
		})
	}
}

func TestRootDeletedWhileServing(t *testing.T) {
	s := start(t)
	text := prompt(t, 600, 3)
	s.ask(text, 4)
	// a rename removes the directory in one step while pages are being written
	require.NoError(t, os.Rename(s.root, s.root+".1"))
	s.ask(prompt(t, 600, 4), 4)
	s.ask(text, 4)
	s.unload()
	require.NoError(t, os.RemoveAll(s.root))
	s.ask(text, 4)
	s.unload()
	require.Equal(t, 599, s.ask(text, 4).restored, "stored again once there is a directory")
}

func TestRootLosesItsPermissions(t *testing.T) {
	s := start(t)
	s.ask(prompt(t, 300, 5), 4)
	s.unload()
	// a plain file where the store's directories should be: fails for root too
	require.NoError(t, os.RemoveAll(filepath.Join(s.root, "v1")))
	require.NoError(t, os.WriteFile(filepath.Join(s.root, "v1"), nil, 0o600))
	mark := s.LogMark()
	s.ask(prompt(t, 600, 6), 4)
	s.ask(prompt(t, 600, 7), 4)
	s.unload()
	require.LessOrEqual(t, strings.Count(s.Logs()[mark:], "level=WARN"), 2, "the log repeats itself")
}

// Writes are refused for one turn of a conversation. Later turns store the missing pages,
// and the whole conversation is restored after the model was unloaded.
func TestWritesRefusedForOneTurn(t *testing.T) {
	s := start(t)
	s.ask("", 1) // the store makes its directories
	v1 := filepath.Join(s.root, "v1")
	require.NoError(t, os.Rename(v1, v1+".away"))
	require.NoError(t, os.WriteFile(v1, nil, 0o600)) // refuses root as well
	text := prompt(t, 1600, 16)
	s.ask(text[:len(text)/2], 4)
	require.NoError(t, s.WaitLogFrom(s.context(), 0, "conversations are not stored"))
	require.NoError(t, os.Remove(v1))
	require.NoError(t, os.Rename(v1+".away", v1))
	for range 2 {
		s.ask(text, 4)
	}
	s.unload()
	require.Equal(t, 1599, s.ask(text, 4).restored)
}

func TestRemoteMissingAtStart(t *testing.T) {
	remote := filepath.Join(t.TempDir(), "not", "mounted")
	s := start(t, "OLLAMA_KV_TIER_REMOTE="+remote)
	text := prompt(t, 600, 8)
	s.ask(text, 4)
	s.unload()
	require.Equal(t, 599, s.ask(text, 4).restored, "the local tier is not affected")
}

func TestCompressedPages(t *testing.T) {
	s := start(t, "OLLAMA_KV_TIER_COMPRESS=1", "OLLAMA_FLASH_ATTENTION=1", "OLLAMA_KV_CACHE_TYPE=q8_0")
	text := prompt(t, 600, 11)
	s.ask(text, 33)
	held := s.ask(text, 33)
	s.crash()
	got := s.ask(text, 33)
	require.Equal(t, 599, got.restored)
	requireSame(t, held, got, "compressed")
}

// The alias sets the default context length; the documented variable wins.
func TestNumCtxAlias(t *testing.T) {
	for env, want := range map[string]int{
		"OLLAMA_NUM_CTX=1536":                            1536,
		"OLLAMA_NUM_CTX=1536 OLLAMA_CONTEXT_LENGTH=1024": 1024,
	} {
		s := startOptions(t, "", ollamatest.Options{Env: strings.Fields(env)})
		s.ask(prompt(t, 30, 12), 4, func(r *ollamatest.Request) { delete(r.Options, "num_ctx") })
		loaded, err := s.PS(s.context())
		require.NoError(t, err)
		require.Len(t, loaded, 1)
		require.Equal(t, want, loaded[0].ContextLength, env)
	}
}

// A model on the llama.cpp runner is not tiered and has no elastic memory, and the log names the
// variable that helps.
func TestLlamaRunnerIsNamed(t *testing.T) {
	llama := shape
	llama.Arch = "llama"
	gguf := filepath.Join(t.TempDir(), "llama.gguf")
	require.NoError(t, testmodel.Write(gguf, llama))
	ask := func(s *server, n int) answer {
		s.create("llama", gguf)
		return s.ask(prompt(t, n, 13), 8, func(r *ollamatest.Request) { r.Model, r.Logprobs, r.TopLogprobs = "llama", false, 0 })
	}
	s := start(t, "OLLAMA_KVCACHED=1")
	ask(s, 100)
	for _, setting := range []string{"kv tier", "kv elastic"} {
		require.Regexp(t, setting+": off for this model: .*OLLAMA_NEW_ENGINE=1", s.Logs())
	}

	engine := start(t, "OLLAMA_NEW_ENGINE=1")
	first := ask(engine, 300)
	require.NoError(t, engine.Unload(engine.context(), "llama"))
	second := ask(engine, 300)
	require.GreaterOrEqual(t, second.restored, 298)
	require.Equal(t, first.Text, second.Text)
}

func TestStartupLine(t *testing.T) {
	s := start(t)
	s.ask(prompt(t, 600, 14), 4)
	s.unload()
	mark := s.LogMark()
	s.ask(prompt(t, 30, 15), 4)
	require.NoError(t, s.WaitLogFrom(s.context(), mark, "kv tier: on"))
	line := s.Logs()[mark:]
	line = line[strings.Index(line, "kv tier: on"):]
	line = line[:strings.IndexByte(line, '\n')]
	for _, part := range []string{"local=" + s.root, `local_budget="20 GB"`, "page_tokens=256", "fingerprint=", "pages=2", "tails=", "bytes="} {
		require.Contains(t, line, part)
	}
	require.Equal(t, 1, strings.Count(s.Logs()[mark:], "kv tier: on"), "once per loaded model")
}
