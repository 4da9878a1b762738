package tierenv

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestInstanceHasItsOwnDirectory(t *testing.T) {
	root := t.TempDir()
	for _, id := range []string{"gpu0", "0", "a.b-c_D", strings.Repeat("x", 64)} {
		tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": root, "OLLAMA_KV_TIER_REMOTE": "/nfs", "OLLAMA_KV_INSTANCE_ID": id})
		c, err := FromEnvironment(discard())
		require.NoError(t, err)
		require.Equal(t, filepath.Join(root, "instances", id), c.Local)
		require.Equal(t, "/nfs", c.Remote, "servers share it")
	}
}

// An id is one element of a path, or tiering stays off.
func TestInstanceRefusesOtherNames(t *testing.T) {
	for _, id := range []string{".", "..", "../gpu0", "a/b", `a\b`, ".hidden", "-x", "a b", "ä", "a\nb", strings.Repeat("x", 65)} {
		tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": t.TempDir(), "OLLAMA_KV_INSTANCE_ID": id})
		_, err := FromEnvironment(discard())
		require.ErrorContains(t, err, "OLLAMA_KV_INSTANCE_ID", "%q", id)
	}
}
