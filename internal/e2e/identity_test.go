package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// A change of any one part of the identity finds no pages.
func TestChangedIdentityMisses(t *testing.T) {
	root := filepath.Join(t.TempDir(), "pages")
	text := prompt(t, 600, 1)
	base := startIn(t, root)
	base.ask(text, 4)
	base.unload()
	require.Equal(t, 599, base.ask(text, 4).restored)
	require.NoError(t, base.Stop())

	t.Run("weights", func(t *testing.T) {
		other := shape
		other.Seed = 2
		gguf := filepath.Join(t.TempDir(), "other.gguf")
		require.NoError(t, testmodel.Write(gguf, other))
		s := startIn(t, root)
		s.create("other", gguf)
		require.Zero(t, s.ask(text, 4, func(r *ollamatest.Request) { r.Model = "other" }).restored)
	})
	for name, env := range map[string][]string{
		"cache type":      {"OLLAMA_KV_CACHE_TYPE=q8_0", "OLLAMA_FLASH_ATTENTION=1"},
		"flash attention": {"OLLAMA_FLASH_ATTENTION=0"},
		"page size":       {"OLLAMA_KV_TIER_PAGE_TOKENS=128"},
		"namespace":       {"OLLAMA_KV_TIER_NAMESPACE=somebody else"},
	} {
		t.Run(name, func(t *testing.T) {
			s := startIn(t, root, env...)
			require.Zero(t, s.ask(text, 4).restored)
			require.NoError(t, s.Stop())
		})
	}
	again := startIn(t, root)
	require.Equal(t, 599, again.ask(text, 4).restored, "the original is untouched")
}

// Pages of a replaced engine are never used; they are reported, and removed after a day
// without use.
func TestOtherEngineIsReclaimed(t *testing.T) {
	root := filepath.Join(t.TempDir(), "pages")
	text := prompt(t, 600, 2)
	older := startOptions(t, root, ollamatest.Options{Binary: otherBuild(t), Env: []string{
		"OLLAMA_KV_TIERING=1", "OLLAMA_KV_TIER_LOCAL=" + root,
	}})
	older.ask(text, 4)
	older.unload()
	require.Equal(t, 599, older.ask(text, 4).restored)
	require.NoError(t, older.Stop())
	abandoned := older.pages()
	require.NotEmpty(t, abandoned)

	s := startIn(t, root)
	require.Zero(t, s.ask(text, 4).restored)
	require.NoError(t, s.WaitLog(s.context(), "found pages of another version of the engine"))
	require.FileExists(t, abandoned[0], "it may be in use elsewhere")
	s.unload()

	longAgo := time.Now().Add(-25 * time.Hour)
	for _, page := range abandoned {
		require.NoError(t, os.Chtimes(page, longAgo, longAgo))
	}
	require.Equal(t, 599, s.ask(text, 4).restored)
	require.NoError(t, s.WaitLog(s.context(), "reclaimed pages that another version of the engine left"))
	for _, page := range abandoned {
		require.NoFileExists(t, page)
	}
	s.unload()
	require.Equal(t, 599, s.ask(text, 4).restored)
}

// otherBuild is an executable that differs in its bytes and not in its behaviour.
func otherBuild(t *testing.T) string {
	t.Helper()
	binary, err := ollamatest.FindBinary()
	if err != nil {
		t.Skip(err)
	}
	data, err := os.ReadFile(binary)
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	require.NoError(t, os.Symlink(filepath.Join(filepath.Dir(filepath.Dir(binary)), "lib"), filepath.Join(dir, "lib")))
	path := filepath.Join(dir, "bin", "ollama")
	require.NoError(t, os.WriteFile(path, append(data, "another build"...), 0o755))
	return path
}

// Damaged files are set aside and computed again, with the same output.
func TestDamagedPagesAreQuarantined(t *testing.T) {
	damage := map[string]func(t *testing.T, path string){
		"flipped bit": flipByte,
		"truncated": func(t *testing.T, path string) {
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.NoError(t, os.Truncate(path, info.Size()-1))
		},
		"empty": func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 0)) },
		"swapped with another page": func(t *testing.T, path string) {
			other := path + ".other"
			require.NoError(t, os.WriteFile(other, []byte("not a page"), 0o600))
			require.NoError(t, os.Rename(other, path))
		},
	}
	for name, hurt := range damage {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			text := prompt(t, 600, 3)
			cold := s.ask(text, 33)
			require.NoError(t, s.Stop())
			pages := s.pages()
			require.NotEmpty(t, pages)
			for _, page := range pages {
				hurt(t, page)
			}
			require.NoError(t, s.Restart(s.context()))

			got := s.ask(text, 33)
			require.Zero(t, got.restored)
			requireSame(t, cold, got, "computed again")
			require.NotEmpty(t, files(t, filepath.Join(s.root, "v1", "quarantine"), ".kvp"))
			s.unload()
			got = s.ask(text, 33)
			require.Equal(t, 599, got.restored, "stored again")
			held := s.ask(text, 33)
			requireSame(t, held, got, "restored again")
		})
	}
}

// Without the variable, tiering is off: no file, no log line, and the same output as with
// tiering on.
func TestOffMeansOff(t *testing.T) {
	text := prompt(t, 600, 4)
	on := start(t)
	want := on.ask(text, 33)

	off := startOptions(t, "", ollamatest.Options{Env: []string{"OLLAMA_NUM_PARALLEL=1"}})
	got := off.ask(text, 33)
	requireSame(t, want, got, "cold")
	off.unload()
	require.Zero(t, off.ask(text, 4).restored)
	require.NotContains(t, off.Logs(), "kv tier")
	require.Empty(t, files(t, off.Home(), ".kvp"))
	require.NoDirExists(t, filepath.Join(off.Home(), ".ollama", "kv-cache"))
}
