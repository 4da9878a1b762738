package llamae2e

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/trial"
)

// TestTry: what kvtier try shows on a stock Ollama, with kvtier and without.
func TestTry(t *testing.T) {
	for _, tiering := range []string{"1", "0"} {
		o := &ollama{t: t}
		o.start("qwen3", []string{"m"}, "OLLAMA_KV_TIERING="+tiering)
		c := trial.Client{URL: o.URL().String(), HTTP: http.DefaultClient}
		r, err := trial.Run(t.Context(), c, "", func(_ string, do func() error) error { return do() })
		require.NoError(t, err)
		require.Equal(t, "m:latest", r.Model)
		require.Equal(t, tiering == "1", r.Restored())
		require.Greater(t, r.Rows[0].Tokens, 1000)
		require.Less(t, *r.Rows[0].Reused, 10, "nobody has asked it before")
		require.True(t, r.Rows[2].Same)
	}
}
