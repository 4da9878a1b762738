package identity

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/ollama/ollama/fs/ggml"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/sizing"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// TestAdapterOnTheWholePrompt: rows that depend on tokens behind their own must not be stored.
func TestAdapterOnTheWholePrompt(t *testing.T) {
	write := func(values map[string]any) string {
		kv := ggml.KV{"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": float32(16)}
		for key, value := range values {
			kv[key] = value
		}
		return testmodel.Head(t, kv)
	}
	usual := write(nil)
	require.NoError(t, wholly(usual))
	require.ErrorContains(t, wholly(write(map[string]any{invocation: []uint32{7, 8}})), "behind certain tokens only")

	content, err := os.ReadFile(usual)
	require.NoError(t, err)
	for size := range len(content) {
		cut := filepath.Join(t.TempDir(), "cut.gguf")
		require.NoError(t, os.WriteFile(cut, content[:size], 0o600))
		require.Error(t, wholly(cut), "%d of %d bytes", size, len(content))
	}
}

// TestModelThatLies: lengths that a file does not have are an error, and end no daemon.
func TestModelThatLies(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.gguf")
	for _, length := range []uint64{1 << 40, 1 << 62, math.MaxUint64} {
		head := binary.LittleEndian.AppendUint32([]byte("GGUF"), 3)
		for _, n := range []uint64{0, 1, length} { // tensors, values, bytes of the first key
			head = binary.LittleEndian.AppendUint64(head, n)
		}
		require.NoError(t, os.WriteFile(path, head, 0o600))
		_, err := ReadModel(path)
		require.ErrorIs(t, err, sizing.ErrNotGGUF)
		require.ErrorIs(t, wholly(path), sizing.ErrNotGGUF)
	}
}
