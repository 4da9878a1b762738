package tiering

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
)

func TestClaimInstance(t *testing.T) {
	root := on(t, nil)
	lock, err := claimInstance()
	require.NoError(t, err)
	require.Nil(t, lock, "without an id there is nothing to claim")
	require.NoDirExists(t, root)

	t.Setenv("OLLAMA_KV_INSTANCE_ID", "gpu0")
	first, err := claimInstance()
	require.NoError(t, err)
	_, err = claimInstance()
	require.ErrorIs(t, err, vfs.ErrLocked)
	require.ErrorContains(t, err, "OLLAMA_KV_INSTANCE_ID=gpu0 is in use")
	require.ErrorContains(t, err, filepath.Join(root, "instances", "gpu0"))

	t.Setenv("OLLAMA_KV_INSTANCE_ID", "gpu1")
	other, err := claimInstance()
	require.NoError(t, err, "another id")
	require.NoError(t, other.Close())

	t.Setenv("OLLAMA_KV_INSTANCE_ID", "gpu0")
	require.NoError(t, first.Close())
	again, err := claimInstance()
	require.NoError(t, err, "after its holder is gone")
	require.NoError(t, again.Close())
}

// The directory's parents must be as safe as the directory.
func TestClaimInstanceChecksEveryDirectory(t *testing.T) {
	for _, dir := range []string{".", "instances", "instances/gpu0"} {
		root := on(t, map[string]string{"OLLAMA_KV_INSTANCE_ID": "gpu0"})
		require.NoError(t, os.MkdirAll(filepath.Join(root, "instances", "gpu0"), 0o700))
		require.NoError(t, os.Chmod(filepath.Join(root, dir), 0o770))
		_, err := claimInstance()
		require.ErrorContains(t, err, "chmod 700", dir)
	}
}

// A directory that cannot be used turns tiering off for the runners, too. Only an id in use
// keeps the server from starting.
func TestClaimInstanceTurnsTieringOff(t *testing.T) {
	for name, vars := range map[string]map[string]string{
		"no directory": {"OLLAMA_KV_TIER_LOCAL": filepath.Join(fileAt(t), "below"), "OLLAMA_KV_INSTANCE_ID": "gpu0"},
		"no name":      {"OLLAMA_KV_TIER_LOCAL": t.TempDir(), "OLLAMA_KV_INSTANCE_ID": "../gpu0"},
	} {
		vars["OLLAMA_KV_TIERING"] = "1"
		tierenvtest.Set(t, vars)
		release, err := ClaimInstance()
		require.NoError(t, err, name)
		release()
		require.False(t, Enabled(), name)
	}

	root := t.TempDir()
	tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": root, "OLLAMA_KV_INSTANCE_ID": "gpu0"})
	release, err := ClaimInstance()
	require.NoError(t, err)
	_, err = ClaimInstance()
	require.ErrorIs(t, err, vfs.ErrLocked)
	require.True(t, Enabled())

	t.Setenv("OLLAMA_KV_TIERING", "0")
	off, err := ClaimInstance()
	require.NoError(t, err, "off means off")
	off()

	t.Setenv("OLLAMA_KV_TIERING", "1")
	release()
	again, err := ClaimInstance()
	require.NoError(t, err, "released")
	again()
}

func fileAt(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	return path
}
