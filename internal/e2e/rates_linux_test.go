package e2e

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/mounts"
)

// A remote tier without rates does not answer. A prompt with pages there is computed after a
// wait of about the time to compute one page.
func TestRemoteThatHangsIsGivenUp(t *testing.T) {
	source := filepath.Join(t.TempDir(), "pages")
	text := prompt(t, 600, 1)
	s := startIn(t, source)
	want := s.ask(text, 8)
	s.unload()
	require.NoError(t, s.Close())

	mount := mounts.NewPassthrough(t, source)
	s = start(t, "OLLAMA_KV_TIER_REMOTE="+mount.Dir, "OLLAMA_KV_TIER_TEST=0", "OLLAMA_KV_TIER_WARM_GB=0", "OLLAMA_DEBUG=1")
	s.ask(prompt(t, 600, 2), 1) // teaches the cost of computing
	mount.Stall(mounts.OpRead)
	got := s.ask(text, 8)
	require.Zero(t, got.restored)
	require.Contains(t, s.Logs(), "kv tier: pages are not read, computing them is quicker")
	requireSame(t, want, got, "computed after all")
	mount.Heal()
}
