package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
)

// A model that is loaded again after kill -9 has its latest conversation in memory before
// the first request, and gives the same answer from there.
func TestLatestConversationIsReadAhead(t *testing.T) {
	for _, kind := range []struct{ name, env, into, from string }{
		{"page cache", "OLLAMA_KV_TIER_RAM_GB=0", `into="page cache"`, "from=local"},
		{"decoded", "OLLAMA_KV_TIER_RAM_GB=0.1", "into=memory", "from=ram"},
	} {
		t.Run(kind.name, func(t *testing.T) {
			s := start(t, kind.env, "OLLAMA_KV_TIER_COMPRESS=1")
			text := prompt(t, 3*pageTokens+70, 97)
			s.ask(text, 33)
			held := s.ask(text, 33)

			s.crash()
			mark := s.LogMark()
			s.ask(prompt(t, 20, 98), 1, func(r *ollamatest.Request) { r.Options["kv_store"] = false })
			require.NoError(t, s.WaitLogFrom(s.context(), mark, "kv tier: read ahead"))
			require.Contains(t, s.Logs()[mark:], kind.into)
			got := s.ask(text, 33)
			require.Equal(t, 3*pageTokens+69, got.restored)
			require.Regexp(t, `kv tier: restored.* `+kind.from, s.Logs()[mark:])
			requireSame(t, held, got, "after reading ahead")
		})
	}
}

// WARM_GB=0 reads nothing ahead.
func TestReadAheadOff(t *testing.T) {
	s := start(t, "OLLAMA_KV_TIER_WARM_GB=0")
	text := prompt(t, 2*pageTokens, 99)
	s.ask(text, 4)
	s.crash()
	require.Equal(t, 2*pageTokens-1, s.ask(text, 4).restored)
	s.unload()
	require.NotContains(t, s.Logs(), "read ahead")
}
