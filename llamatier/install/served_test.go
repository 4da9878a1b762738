//go:build unix

package install

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestServed: the variables are those that the service has, also without an answer of systemd.
func TestServed(t *testing.T) {
	t.Parallel()
	w := newService(t)
	_, ok := w.Served(t.Context())
	require.False(t, ok)

	require.NoError(t, w.install(Options{Variables: map[string]string{"OLLAMA_KV_TIER_LOCAL_GB": "7"}}))
	w.later = "OLLAMA_KV_TIER_LOCAL_GB=9 OLLAMA_MODELS=/models"
	s, ok := w.Served(t.Context())
	require.True(t, ok)
	require.Equal(t, Served{Service: "ollama.service", User: w.show["User"], Variables: map[string]string{
		"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": w.at("var/lib/kvtier/pages"), "OLLAMA_KV_TIER_LOCAL_GB": "9", "OLLAMA_MODELS": "/models",
	}}, s)

	w.broken = "systemctl"
	s, ok = w.Served(t.Context())
	require.True(t, ok)
	require.Equal(t, "7", s.Variables["OLLAMA_KV_TIER_LOCAL_GB"])
	require.Empty(t, s.User)

	w.broken = ""
	w.write("etc/systemd/system/other.service.d/kvtier.conf", w.read(dropInFile), 0o644)
	_, ok = w.Served(t.Context())
	require.False(t, ok, "one of two")
}
