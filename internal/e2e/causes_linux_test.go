package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/mounts"
	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/internal/testmodel"
	"github.com/kvtier/kvtier/telemetry"
)

// TestCausesOfSlowTiers: pages that are not read from a tier that hangs or fails, and pages that
// are still being written, on filesystems that do so.
func TestCausesOfSlowTiers(t *testing.T) {
	const n = 600
	text := prompt(t, n, 1)
	source := filepath.Join(t.TempDir(), "pages")
	s := startIn(t, source)
	s.ask(text, 1)
	s.unload()
	require.NoError(t, s.Close())

	t.Run("computing was quicker", func(t *testing.T) {
		remote := mounts.NewPassthrough(t, source)
		a := asker{server: start(t, "OLLAMA_KV_TIER_REMOTE="+remote.Dir, "OLLAMA_KV_TIER_TEST=0", "OLLAMA_KV_TIER_WARM_GB=0")}
		require.Equal(t, telemetry.CauseNeverSeen, a.miss(prompt(t, n, 2)).Cause)
		remote.Stall(mounts.OpRead)
		miss := a.miss(text)
		require.Equal(t, telemetry.CauseQuicker, miss.Cause)
		require.Zero(t, miss.At)
		remote.Heal()
	})
	t.Run("tier down", func(t *testing.T) {
		remote := mounts.NewPassthrough(t, source)
		a := asker{server: start(t, "OLLAMA_KV_TIER_REMOTE="+remote.Dir, "OLLAMA_KV_TIER_WARM_GB=0")}
		require.Equal(t, telemetry.CauseNeverSeen, a.miss(prompt(t, n, 3)).Cause)
		remote.Fail(syscall.EIO, mounts.OpLookup, mounts.OpOpen, mounts.OpRead)
		miss := a.miss(text)
		require.Equal(t, telemetry.CauseTierDown, miss.Cause)
		require.Contains(t, miss.Detail, "remote")
		remote.Heal()
	})
	t.Run("still being written", func(t *testing.T) {
		local := mounts.NewPassthrough(t, filepath.Join(t.TempDir()))
		a := asker{server: startIn(t, filepath.Join(local.Dir, "pages"), "OLLAMA_KV_TIER_WARM_GB=0")}
		a.miss(prompt(t, 40, 4)) // opens the store
		a.flush()
		local.Stall(mounts.OpFsync)
		require.Equal(t, telemetry.CauseNeverSeen, a.miss(text).Cause)
		a.miss(prompt(t, 40, 5)) // takes the slot
		require.Equal(t, telemetry.CauseWriting, a.miss(text).Cause)
		local.Heal()
	})
}

// TestCausesOfOtherModels: the same text was stored for other weights, and by another way of
// computing.
func TestCausesOfOtherModels(t *testing.T) {
	other := shape
	other.Seed = 2
	gguf := filepath.Join(t.TempDir(), "other.gguf")
	require.NoError(t, testmodel.Write(gguf, other))
	text := prompt(t, 600, 1)
	a := asker{server: start(t, "OLLAMA_KV_TIER_WARM_GB=0")}
	a.create("other", gguf)
	require.Equal(t, telemetry.CauseNeverSeen, a.miss(text).Cause)
	a.flush()
	require.Equal(t, telemetry.CauseWeights, a.miss(text, func(r *ollamatest.Request) { r.Model = "other" }).Cause)
	a.flush()
	require.NoError(t, a.Close())

	a.server = startIn(t, a.root, "OLLAMA_KV_TIER_WARM_GB=0", "OLLAMA_FLASH_ATTENTION=0")
	require.Equal(t, telemetry.CauseBuild, a.miss(text).Cause)
}

// On a full disk requests succeed, the log has one line, and pages are stored again when
// there is room.
func TestFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("kvtier-test", disk, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		t.Skipf("mounting a small filesystem needs privileges this process does not have: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(disk, syscall.MNT_DETACH)) })
	filler := filepath.Join(disk, "filler")
	require.NoError(t, os.WriteFile(filler, make([]byte, 900<<10), 0o600))

	s := startIn(t, filepath.Join(disk, "pages"))
	s.ask(prompt(t, 1500, 1), 4)
	s.ask(prompt(t, 1500, 2), 4)
	s.unload()
	require.Equal(t, 1, strings.Count(s.Logs(), "conversations are not stored"), "one clear line")
	require.Contains(t, s.Logs(), "no space left on device")

	require.NoError(t, os.Remove(filler))
	text := prompt(t, 300, 3)
	s.ask(text, 4)
	s.unload()
	require.Equal(t, 299, s.ask(text, 4).restored)
	require.NoError(t, s.Stop())
}

// A remote tier without rates does not answer. A prompt with pages there is computed after a
// wait of about the time to compute one page.
func TestRemoteThatHangsIsGivenUp(t *testing.T) {
	source := filepath.Join(t.TempDir(), "pages")
	text := prompt(t, 600, 1)
	s := startIn(t, source)
	want := s.ask(text, 8)
	s.unload()
	require.NoError(t, s.Close())

	mount := mounts.NewPassthrough(t, source)
	s = start(t, "OLLAMA_KV_TIER_REMOTE="+mount.Dir, "OLLAMA_KV_TIER_TEST=0", "OLLAMA_KV_TIER_WARM_GB=0", "OLLAMA_DEBUG=1")
	s.ask(prompt(t, 600, 2), 1) // teaches the cost of computing
	mount.Stall(mounts.OpRead)
	got := s.ask(text, 8)
	require.Zero(t, got.restored)
	require.Contains(t, s.Logs(), "kv tier: pages are not read, computing them is quicker")
	requireSame(t, want, got, "computed after all")
	mount.Heal()
}
