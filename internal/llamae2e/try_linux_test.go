package llamae2e

import (
	"net/http"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/testmodel"
	"github.com/kvtier/kvtier/internal/trial"
)

// TestTry: what kvtier try shows on a stock Ollama, with kvtier and without.
func TestTry(t *testing.T) {
	for _, tiering := range []string{"1", "0"} {
		o := &ollama{t: t}
		o.start("qwen3", []string{"m"}, "OLLAMA_KV_TIERING="+tiering)
		c := &trial.Ollama{URL: o.URL().String(), HTTP: http.DefaultClient}
		require.NoError(t, c.Choose(t.Context(), ""))
		r, err := trial.Run(t.Context(), c, step)
		require.NoError(t, err)
		require.Equal(t, "m:latest", r.Model)
		require.Equal(t, tiering == "1", r.Restored())
		require.Greater(t, r.Rows[0].Tokens, 1000)
		require.Less(t, *r.Rows[0].Reused, 10, "nobody has asked it before")
		require.True(t, r.Rows[2].Same)
	}
}

func step(_ string, do func() error) error { return do() }

// TestTryFile: what kvtier try shows with a llama-server alone, and of one that cannot load the file.
func TestTryFile(t *testing.T) {
	program := filepath.Join(tree(t), "lib", "ollama", "llama-server")
	serve := []string{program, "serve", "--root", t.TempDir(), "--", program + "-real"}
	s := &trial.Alone{File: aModel(t, testmodel.Shape{Arch: "qwen3"}), Window: 2048, Serve: serve}
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, s.Start(t.Context()))
	r, err := trial.Run(t.Context(), s, step)
	require.NoError(t, err)
	require.Equal(t, "qwen3", r.Model)
	require.True(t, r.Restored())
	require.Greater(t, r.Rows[0].Tokens, 500)
	require.Less(t, *r.Rows[0].Reused, 10)
	require.True(t, r.Rows[2].Same)

	none := &trial.Alone{File: program, Serve: serve}
	require.ErrorContains(t, none.Start(t.Context()), "ended before it had loaded")
	require.NoError(t, none.Close())
}
