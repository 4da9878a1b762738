package ollamasrc

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWriteWorkspace(t *testing.T) {
	root := t.TempDir()
	lay := Layout{Root: root, Dir: filepath.Join(root, "build", "ollama")}
	for _, tc := range []struct{ ollama, kvtier, want string }{
		{"1.24.1", "1.24.1", "1.24.1"},
		{"1.26.0", "1.24.1", "1.26.0"},
		{"1.24.1", "1.24.10", "1.24.10"},
		{"1.24.0", "1.24rc1", "1.24.0"},
	} {
		write(t, filepath.Join(lay.Src(), "go.mod"), "module github.com/ollama/ollama\n\ngo "+tc.ollama+"\n")
		write(t, filepath.Join(root, "go.mod"), "module github.com/kvtier/kvtier\n\ngo "+tc.kvtier+"\n")
		require.NoError(t, writeWorkspace(lay))
		data, err := os.ReadFile(lay.GoWork())
		require.NoError(t, err)
		require.Equal(t, "go "+tc.want+"\n\nuse (\n\t./src\n\t../..\n)\n", string(data))
	}
}
