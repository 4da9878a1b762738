package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHotOfASplit: a quarter of the context is the memory of paged attention, or the first limit of
// elastic memory, and the log names the variable in whose place HOT counts.
func TestHotOfASplit(t *testing.T) {
	const quarter = numCtx * bytesPerToken / 4
	split := "OLLAMA_KV_TIER_SPLIT=25,0,75"
	t.Run("paged attention", func(t *testing.T) {
		s := start(t, append(paged(t, 64, plenty), split, "OLLAMA_PAGED_HOST_GB=")...)
		s.ask(prompt(t, 700, 90), 4)
		require.Regexp(t, fmt.Sprintf(`kv pager: on" .* host_bytes=%d host_tokens=%d`, quarter, numCtx/4), s.Logs())
		require.Contains(t, s.Logs(), fmt.Sprintf("hot_bytes=%d hot_sets=OLLAMA_PAGED_HOST_GB", quarter))
	})
	t.Run("elastic memory", func(t *testing.T) {
		s := limited{start(t, append(elasticOn(t), split, "OLLAMA_FLASH_ATTENTION=1")...), 1}
		s.ask(prompt(t, 100, 91), 4)
		require.EqualValues(t, quarter, s.segment().Limit)
		require.Contains(t, s.Logs(), fmt.Sprintf("hot_bytes=%d hot_sets=OLLAMA_KVCACHED_LIMIT_MB", quarter))
	})
	t.Run("neither", func(t *testing.T) {
		s := start(t, split)
		s.ask(prompt(t, 100, 92), 4)
		require.Contains(t, s.Logs(), fmt.Sprintf("hot_bytes=%d hot_sets=nothing", quarter))
	})
}
