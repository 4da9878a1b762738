package collect

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
)

// TestForgettingGoesOn: a file of prompts that goes meanwhile is no error, and one that cannot be
// removed keeps no other one.
func TestForgettingGoesOn(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, directoryName)
	require.NoError(t, os.Mkdir(dir, 0o700))
	var names []string
	for range 4 {
		name := newName()
		names = append(names, name)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+wordsEnd), []byte("{}"), 0o600))
	}
	blocked := filepath.Join(dir, names[1]+wordsEnd) // a folder that is not empty
	require.NoError(t, os.Remove(blocked))
	require.NoError(t, os.MkdirAll(filepath.Join(blocked, "a"), 0o700))

	_ = Forget(t.Context(), root, func(telemetry.Model) bool { return true })
	for _, name := range []string{names[0], names[2], names[3]} {
		require.NoFileExists(t, filepath.Join(dir, name+wordsEnd))
	}

	require.NoError(t, os.RemoveAll(blocked))
	made := testSource(1).Report()
	data, err := encode(promptsIn(&made))
	require.NoError(t, err)
	remain := func() []string {
		found, err := filepath.Glob(filepath.Join(dir, "*"+wordsEnd))
		require.NoError(t, err)
		return found
	}
	for _, name := range names {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+wordsEnd), data, 0o600))
	}
	asked := 0
	require.NoError(t, Forget(t.Context(), root, func(telemetry.Model) bool {
		for _, path := range remain() { // their processes have ended
			require.NoError(t, os.Remove(path))
		}
		asked++
		return true
	}))
	require.Equal(t, 1, asked)
}
