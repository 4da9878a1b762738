package tiering

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/digests"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
	"github.com/kvtier/kvtier/kvcache"
)

// Loading a model reads its stored conversation ahead, and logs a line.
func TestStartReadsAhead(t *testing.T) {
	root, model := filepath.Join(t.TempDir(), "pages"), testModelAt(t)
	settings := func(more map[string]string) {
		vars := map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": root, "OLLAMA_KV_TIER_WARM_GB": "1"}
		for name, value := range more {
			vars[name] = value
		}
		tierenvtest.Set(t, vars)
	}
	settings(nil)
	storePage(t, model)

	lines := make(chan string, 8)
	logger := slog.New(slog.NewTextHandler(lineWriter(lines), nil))
	tiered, _, err := start(model, plainCache{}, []kvcache.Rows{plainCache{}}, logger)
	require.NoError(t, err)
	both := <-lines + <-lines // in any order
	require.Contains(t, both, "kv tier: on")
	require.Regexp(t, `kv tier: read ahead" pages=1 bytes=\S+ .*into="page cache" took=`, both)
	tiered.Close()

	settings(map[string]string{"OLLAMA_KV_TIER_RAM_GB": "0.1"})
	tiered, _, err = start(model, plainCache{}, []kvcache.Rows{plainCache{}}, logger)
	require.NoError(t, err)
	require.Contains(t, <-lines+<-lines, "into=memory")
	tiered.Close()

	settings(map[string]string{"OLLAMA_KV_TIER_WARM_GB": "0"})
	tiered, _, err = start(model, plainCache{}, []kvcache.Rows{plainCache{}}, logger)
	require.NoError(t, err)
	require.Contains(t, <-lines, "kv tier: on")
	tiered.Close()
	close(lines)
	for line := range lines {
		require.False(t, strings.Contains(line, "ahead"), line)
	}
}

// TestTheLatestConversationIsNamed before it is read ahead.
func TestTheLatestConversationIsNamed(t *testing.T) {
	model := testModelAt(t)
	on(t, nil)
	storePage(t, model)
	store, _, _ := opened(t, model)
	s := &modelStore{Store: store, latest: make(chan []int32, 1), log: slog.New(slog.DiscardHandler)}
	s.nameLatest(t.Context())
	require.Equal(t, make([]int32, diskstore.DefaultPageTokens), <-s.latest)
	require.NoError(t, store.Close())
}

// opened is the store of a model in the root that the environment names.
func opened(t *testing.T, m Model) (*diskstore.Store, tierenv.Config, pagefile.Key) {
	t.Helper()
	config, err := tierenv.FromEnvironment(slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.NoError(t, config.PrepareRoot())
	identity, err := identityOf(m, config, digests.Open(""))
	require.NoError(t, err)
	options, key := config.StoreOptions(), tierenv.Fingerprint(identity)
	options.Fingerprint, options.Identity, options.LatestPages = key, identity, latestTokens/config.PageTokens
	store, err := diskstore.Open(t.Context(), options)
	require.NoError(t, err)
	return store, config, key
}

// storePage stores one page for a model.
func storePage(t *testing.T, m Model) {
	t.Helper()
	store, _, key := opened(t, m)
	tokens := make([]int32, diskstore.DefaultPageTokens)
	layout, err := pagefile.NewLayout([]pagefile.Section{{Kind: pagefile.KindK, RowBytes: 64}}, len(tokens))
	require.NoError(t, err)
	page := &pagefile.Page{Parent: key, Tokens: tokens, Layout: layout, Payload: make([]byte, layout.Size())}
	require.NoError(t, store.Put(t.Context(), page))
	require.NoError(t, store.Close())
}

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
	on(t, map[string]string{"OLLAMA_KV_TIER_REUSE": "shifted"})
	model, log := testModelAt(t), slog.New(slog.DiscardHandler)
	storePage(t, model)
	store, config, _ := opened(t, model)
	defer store.Close()
	s := &modelStore{Store: store, config: config, runs: runsFor(model, architectures["qwen3"], config, log), log: log}
	s.indexRuns(t.Context())
	require.Equal(t, 1, s.runs.Len())
	require.Len(t, s.runs.Find(make([]int32, config.PageTokens), 7), 1)
}
