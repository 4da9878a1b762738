package launch

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOptionsInAFile may name another model, other rows, or another address. Nobody stands before
// such a llama-server.
func TestOptionsInAFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ".config", "llama.cpp", "config.ini")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	places := []string{"HOME=" + dir, "XDG_CONFIG_HOME=" + filepath.Join(dir, ".config")}
	for text, options := range map[string]bool{
		"": false, "; rope-freq-base = 5\n# x\n\n[*]\n": false,
		"rope-freq-base = 5": true, "version = 1\r\n[*]\r\n  lora=/a\r\n": true,
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		for _, place := range places {
			require.Equal(t, options, command(ollama, place).Hidden() != "", "%q in %s", text, place)
		}
		require.Empty(t, command(ollama, "HOME="+dir, "XDG_CONFIG_HOME="+t.TempDir()).Hidden())
	}
}
