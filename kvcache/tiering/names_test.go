package tiering

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNames(t *testing.T) {
	dir := t.TempDir()
	a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)
	manifest := func(digest string) string {
		return `{"layers": [{"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:0"}, {"mediaType": "` + weightsMediaType + `", "digest": "sha256:` + digest + `"}]}`
	}
	for name, text := range map[string]string{
		"registry.ollama.ai/library/qwen3/8b":   manifest(a),
		"registry.ollama.ai/library/qwen3/best": manifest(a),
		"registry.ollama.ai/me/chat/latest":     manifest(b),
		"hf.co/them/chat/q8":                    manifest(strings.Repeat("c", 64)),
		"registry.ollama.ai/library/bad/1":      "{",
		"registry.ollama.ai/library/none/1":     "{}",
		"registry.ollama.ai/library/large/1":    manifest(b) + strings.Repeat(" ", manifestBytesMax),
		"registry.ollama.ai/library/deep/1/x":   manifest(b),
		"registry.ollama.ai/short":              manifest(b),
	} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	require.Equal(t, map[string]string{a: "qwen3:8b", b: "me/chat:latest", strings.Repeat("c", 64): "hf.co/them/chat:q8"}, namesIn(dir))
	require.Empty(t, namesIn(filepath.Join(dir, "missing")))
	require.Empty(t, new(modelNames).name(a), "nothing is read yet")
}
