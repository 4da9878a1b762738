package tiering

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
	"github.com/kvtier/kvtier/kvcache"
)

// windowedCache is a cache that drops positions.
type windowedCache struct{ plainCache }

func (windowedCache) RowWindow() (window, memory int32) { return 1024, 1024 }

// Pages of a cache in f16 without windows become lossy, and the start line says so. For other models
// one line says why they do not.
func TestStartSaysWhetherPagesBecomeLossy(t *testing.T) {
	for name, test := range map[string]struct {
		cold, cacheType string
		rows            kvcache.Rows
		says            []string // lines
	}{
		"asked":     {"q8_0,int4", "f16", plainCache{}, []string{`kv tier: on.* cold_type=q8_0,int4 lossy_pages=0`}},
		"not asked": {"", "f16", plainCache{}, []string{`kv tier: on`}},
		"quantized": {"q4_0", "q8_0", plainCache{}, []string{`no page becomes lossy.*the type of the KV cache is q8_0`, `kv tier: on`}},
		"windows":   {"q4_0", "f16", windowedCache{}, []string{`no page becomes lossy.*a window`, `kv tier: on`}},
		"misspelt":  {"q9_0", "f16", plainCache{}, []string{`invalid environment variable.*q9_0`, `kv tier: on`}},
	} {
		t.Run(name, func(t *testing.T) {
			tierenvtest.Set(t, map[string]string{
				"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": filepath.Join(t.TempDir(), "pages"),
				"OLLAMA_KV_TIER_REMOTE": t.TempDir(), "OLLAMA_KV_TIER_COLD_TYPE": test.cold,
			})
			m := testModelAt(t)
			m.CacheType = test.cacheType
			lines := make(chan string, 8)
			tiered, err := start(m, plainCache{}, []kvcache.Rows{test.rows}, slog.New(slog.NewTextHandler(lineWriter(lines), nil)))
			require.NoError(t, err)
			for _, says := range test.says {
				require.Regexp(t, says, <-lines)
			}
			tiered.Close()
		})
	}
}
