package tiering

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/internal/digests"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
	"github.com/kvtier/kvtier/kvcache"
)

func TestOnlyModelsThatCanShiftHaveAnIndex(t *testing.T) {
	log, lines := tierenvtest.Logger()
	config := tierenv.Config{PageTokens: 256, Shifted: true}
	require.NotNil(t, runsFor(Model{}, architectures["qwen3"], config, log))
	require.Empty(t, lines.String())
	for name, m := range map[string]Model{"llama4": {}, "qwen3": {States: someStates{}}} {
		require.Nil(t, runsFor(m, architectures[name], config, log))
		require.Contains(t, lines.String(), "cannot shift")
		lines.Reset()
	}
	require.Nil(t, runsFor(Model{}, architectures["qwen3"], tierenv.Config{PageTokens: 256}, log))
	require.Empty(t, lines.String(), "reuse of runs is off")
}

type someStates struct{ kvcache.States }

// Text stored before a model is loaded is found at another position, too.
func TestStoredTextIsIndexedWhenAModelIsLoaded(t *testing.T) {
	tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": filepath.Join(t.TempDir(), "pages"), "OLLAMA_KV_TIER_REUSE": "shifted"})
	model := testModelAt(t)
	storePage(t, model)
	log, _ := tierenvtest.Logger()
	config, err := tierenv.FromEnvironment(log)
	require.NoError(t, err)
	identity, err := identityOf(model, config, digests.Open(""))
	require.NoError(t, err)
	store, err := diskstore.Open(t.Context(), diskstore.Options{
		Fingerprint: tierenv.Fingerprint(identity), Identity: identity, Local: diskstore.TierConfig{Root: config.Local}, LatestPages: latestTokens / config.PageTokens,
	})
	require.NoError(t, err)
	defer store.Close()
	s := &modelStore{Store: store, config: config, runs: runsFor(model, architectures["qwen3"], config, log), log: log}
	s.indexRuns(t.Context())
	require.Equal(t, 1, s.runs.Len())
	require.Len(t, s.runs.Find(make([]int32, config.PageTokens), 7), 1)
}
