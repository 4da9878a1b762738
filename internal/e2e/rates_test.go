package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The next runner has the rates that a runner learned, and the first request after a restart
// reads nothing from a tier known to be slow.
func TestRatesOutliveTheRunner(t *testing.T) {
	root := filepath.Join(t.TempDir(), "pages")
	s := startIn(t, root, "OLLAMA_KV_TIER_TEST=0")
	text := prompt(t, 600, 1)
	s.ask(text, 1)
	s.unload()

	path := filepath.Join(root, "rates.json")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var rates struct {
		Version int                       `json:"version"`
		Models  map[string]map[string]any `json:"models"`
		Tiers   map[string]map[string]any `json:"tiers"`
	}
	require.NoError(t, json.Unmarshal(data, &rates))
	require.Len(t, rates.Models, 1)
	for _, m := range rates.Models {
		require.NotEmpty(t, m["token_seconds"])
	}

	now := time.Now().Unix()
	rates.Tiers = map[string]map[string]any{root: {"seen": now, "tried": now, "page_seconds": map[string]any{"whole": [][2]float64{{1e6, 1000}}}}}
	data, err = json.Marshal(rates)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, data, 0o600))
	require.Zero(t, s.ask(text, 1).restored)
}
