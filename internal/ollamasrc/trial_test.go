package ollamasrc

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSeriesPackages(t *testing.T) {
	patch := func(lines string) Patch { return Patch{Data: []byte("From 0\n" + lines)} }
	s := Series{Patches: []Patch{
		patch("diff --git a/server/routes.go b/server/routes.go\ndiff --git a/kvcache/rows.go b/kvcache/rows.go\n"),
		patch("diff --git a/kvcache/rows_test.go b/kvcache/rows_test.go\n diff --git a/not/this.go b/not/this.go\n"),
		patch("diff --git a/ml/backend/ggml/ggml/src/ggml.c b/ml/backend/ggml/ggml/src/ggml.c\n"),
		patch("diff --git a/main.go b/main.go\ndiff --git a/README.md b/README.md\n"),
	}}
	require.Equal(t, []string{".", "./kvcache", "./server"}, s.Packages())
	require.Empty(t, Series{}.Packages())
}

// These packages have the call sites in any series.
func TestPackagesOfTheSeries(t *testing.T) {
	s, err := LoadSeries("../../patches", DefaultVersion, nil)
	require.NoError(t, err)
	require.Subset(t, s.Packages(), []string{"./api", "./envconfig", "./kvcache", "./llm", "./ml/backend/ggml", "./runner/ollamarunner", "./server"})
}
