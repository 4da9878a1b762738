package modelnames

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// store makes a model store with manifests, by their paths below manifests.
func store(t *testing.T, manifests map[string]string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "mod[e]ls*") // a name with letters of patterns
	for path, content := range manifests {
		path = filepath.Join(dir, "manifests", filepath.FromSlash(path))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	return dir
}

const weights = "ab" + "00000000000000000000000000000000000000000000000000000000000000"

var ofSmall = `{"layers":[{"mediaType":"application/vnd.ollama.image.template","digest":"sha256:1"},
	{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:` + weights + `"}]}`

func TestNames(t *testing.T) {
	names := Read(store(t, map[string]string{
		"registry.ollama.ai/library/small/latest": ofSmall,
		"registry.ollama.ai/library/small/q8":     ofSmall,
		"registry.ollama.ai/library/torn/latest":  ofSmall[:40],
		"registry.ollama.ai/library/empty/latest": `{}`,
		"registry.ollama.ai/library/huge/latest":  strings.Repeat(" ", manifestBytesMax) + ofSmall,
		"registry.ollama.ai/library/bad name/x y": ofSmall,
		"too/short": ofSmall,
	}))
	require.Equal(t, Names{weights: {"small:latest", "small:q8"}}, names)
	require.True(t, names.Has(weights, "SMALL"))
	require.True(t, names.Has(weights, "small:q8"))
	require.False(t, names.Has(weights, "small:q4"))
	require.False(t, names.Has("", "small"))
	require.Empty(t, Read(""))
	require.Empty(t, Read(filepath.Join(t.TempDir(), "none")))
}

func TestCache(t *testing.T) {
	var c Cache
	require.Empty(t, c.Name(weights))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Refresh(ctx, func() Names { return Names{weights: {"small:latest", "z"}} })
	}()
	for c.Name(weights) == "" {
		runtime.Gosched()
	}
	require.Equal(t, "small:latest", c.Name(weights))
	require.Empty(t, c.Name("other"))
	cancel()
	<-ended
}
