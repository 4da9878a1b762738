package main

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/llamatier/launch"
)

// TestServingARouter: one line says how to run it instead, and help has none.
func TestServingARouter(t *testing.T) {
	said := func(args ...string) string {
		var w strings.Builder
		sayServed(&w, slog.New(slog.DiscardHandler), "llama-server", launch.Command{Args: args, Environ: []string{"HOME=" + t.TempDir()}})
		return w.String()
	}
	require.Equal(t, "kvtier: nothing is stored: "+launch.RouterRemedy+"\n", said("--models-dir", "d", "--port", "1"))
	require.Empty(t, said("--help"))
}
