package llamae2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// TestStockOllama: a stock Ollama with our llama-server. A conversation comes back after an
// unload, after a restart, and after the end of everything by SIGKILL.
func TestStockOllama(t *testing.T) {
	for _, arch := range []string{"qwen3", "gemma3", "lfm2"} {
		t.Run(arch, func(t *testing.T) {
			dir := tree(t)
			t.Setenv(ollamatest.BinaryEnv, filepath.Join(dir, "bin", "ollama"))
			root := filepath.Join(t.TempDir(), "pages")
			s := ollamatest.ForTest(t, ollamatest.Options{Env: []string{
				"OLLAMA_KV_TIERING=1", "OLLAMA_KV_TIER_LOCAL=" + root, "KVTIER_LLAMA_LOG=" + root + ".log", "OLLAMA_KV_TIER_TEST=1", "OLLAMA_NUM_PARALLEL=1",
			}})
			path := aModel(t, testmodel.Shape{Arch: arch})
			require.NoError(t, s.CreateModel(t.Context(), "m", path, testmodel.Modelfile(path)))
			prompt := strings.Repeat("The quick brown fox jumps over the lazy dog. ", 60)
			ask := func(prompt string) ollamatest.Result {
				r, err := s.Generate(t.Context(), ollamatest.Request{Model: "m", Prompt: prompt, Raw: true, Options: ollamatest.Greedy(20, 4096)})
				require.NoError(t, err)
				return r
			}
			first := ask(prompt)
			next := prompt + first.Text + " And then?"
			want := ask(next)
			require.NoError(t, s.Unload(t.Context(), "m"))
			require.Positive(t, pages(t, root))
			require.Equal(t, want.Text, ask(next).Text)
		})
	}
}
