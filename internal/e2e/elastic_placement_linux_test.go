package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
)

var memoryLines = regexp.MustCompile(`(?m)^(?:MemTotal|SwapTotal): +(\d+) kB$`)

// systemBytes is all memory of the machine, with swap.
func systemBytes(t *testing.T) (sum int64) {
	t.Helper()
	lines, err := os.ReadFile("/proc/meminfo")
	require.NoError(t, err)
	for _, m := range memoryLines.FindAllStringSubmatch(string(lines), -1) {
		kb, err := strconv.ParseInt(m[1], 10, 64)
		require.NoError(t, err)
		sum += kb << 10
	}
	return sum
}

// TestElasticModelIsPlacedByOneSlot: a model whose slots together reach further than all memory
// of the machine is refused without the variable. With it the model is loaded and answers, and a second
// such model is loaded beside it.
func TestElasticModelIsPlacedByOneSlot(t *testing.T) {
	on := elasticOn(t)
	wide := testmodel.Shape{Arch: "qwen3", Layers: 16, Embed: 64, Heads: 16, KVHeads: 16, HeadDim: 64, FFN: 64}.WithDefaults()
	models := map[string]string{}
	for seed, name := range []string{"wide", "wide-too"} {
		models[name], wide.Seed = filepath.Join(t.TempDir(), name+".gguf"), int64(seed)
		require.NoError(t, testmodel.Write(models[name], wide))
	}
	const context = 65536
	slot := context * wide.KVBytesPerToken()
	slots := systemBytes(t)*5/4/slot + 1
	env := []string{fmt.Sprintf("OLLAMA_NUM_PARALLEL=%d", slots), "OLLAMA_FLASH_ATTENTION=1", "OLLAMA_KV_CACHE_TYPE=f16", "OLLAMA_KV_TIERING=0", "OLLAMA_MAX_LOADED_MODELS=2"}
	ask := func(s *server, name string) error {
		options := oneThread(ollamatest.Greedy(4, context))
		options["num_batch"] = 32
		_, err := s.Generate(s.context(), ollamatest.Request{
			Model: name, Prompt: prompt(t, 40, 110), Raw: true, Options: options, KeepAlive: ollamatest.KeepAlive(10 * time.Minute),
		})
		return err
	}

	stock := startPlain(t, env...)
	stock.create("wide", models["wide"])
	require.ErrorContains(t, ask(stock, "wide"), "requires more system memory")

	s := startPlain(t, append(on, env...)...)
	for name, gguf := range models {
		s.create(name, gguf)
		require.NoError(t, ask(s, name), name)
	}
	runners, err := s.Runners()
	require.NoError(t, err)
	require.Len(t, runners, 2, "both models are loaded")
}
