package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
)

// Several servers on one machine, or on several machines with one share.

// remoteDir makes a directory for a remote tier.
func remoteDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "share")
	require.NoError(t, os.Mkdir(dir, 0o700))
	return dir
}

// Two servers share a local and a remote directory: each restores the other's pages to the
// last bit, from both directories.
func TestTwoServersShareBothTiers(t *testing.T) {
	root, remote := filepath.Join(t.TempDir(), "pages"), remoteDir(t)
	// a page of this model is 0.4 MB: the budget does not hold both conversations
	env := []string{"OLLAMA_KV_TIER_REMOTE=" + remote, "OLLAMA_KV_TIER_LOCAL_GB=0.002"}
	a := startIn(t, root, env...)
	b := startIn(t, root, env...)

	first, second := prompt(t, 900, 1), prompt(t, 900, 2)
	a.ask(first, 33)
	heldFirst := a.ask(first, 33)
	a.unload()
	got := b.ask(first, 33)
	require.Equal(t, 899, got.restored, "pages of the first server")
	requireSame(t, heldFirst, got, "from the first server")

	b.ask(second, 33)
	heldSecond := b.ask(second, 33)
	b.unload()
	got = a.ask(second, 33)
	require.Equal(t, 899, got.restored, "pages of the second server")
	requireSame(t, heldSecond, got, "from the second server")
	a.unload()

	require.NotEmpty(t, files(t, remote, ".kvp"))
	for _, s := range []*server{a, b} {
		mark := s.LogMark()
		got = s.ask(first, 33)
		require.Equal(t, 899, got.restored, "from the remote directory")
		requireSame(t, heldFirst, got, "from the remote directory")
		require.Regexp(t, `kv tier: restored.* from=`, s.Logs()[mark:])
	}
}

// One of two servers is killed with SIGKILL repeatedly while the other answers: the answers
// stay the same, and the pages of both are usable.
func TestServerIsKilledBesideAnother(t *testing.T) {
	root, remote := filepath.Join(t.TempDir(), "pages"), remoteDir(t)
	env := []string{"OLLAMA_KV_TIER_REMOTE=" + remote, "OLLAMA_KV_TIER_LOCAL_GB=0.004"}
	a := startIn(t, root, env...)
	b := startIn(t, root, env...)
	text := prompt(t, 900, 3)
	b.ask(text, 33)
	held := b.ask(text, 33)

	for i := range int64(3) {
		// the killed server is in the middle of an answer, and of storing its prompt
		ctx, cancel := context.WithCancel(a.context())
		request := requestFor(prompt(t, 1900, 10+i), 100_000)
		mark := a.LogMark()
		killed := make(chan error)
		go func() {
			_, err := a.Generate(ctx, request)
			killed <- err
		}()
		require.NoError(t, a.WaitLogFrom(a.context(), mark, "kv tier: on"))
		b.ask(prompt(t, 600, 20+i), 4)
		require.NoError(t, a.KillServer())
		require.Error(t, <-killed)
		cancel()

		got := b.ask(text, 33)
		require.Equal(t, 899, got.restored)
		requireSame(t, held, got, "beside a server that was killed")
		require.NoError(t, a.Restart(a.context()))
	}
	b.unload()
	got := a.ask(text, 33)
	require.Equal(t, 899, got.restored, "by the killed server")
	requireSame(t, held, got, "by the killed server")
	require.NotContains(t, a.Logs()+b.Logs(), "kv page is not usable")
}

// instance starts a server with an id.
func instance(t *testing.T, root, id string, env ...string) *server {
	t.Helper()
	return startIn(t, root, append(env, "OLLAMA_KV_INSTANCE_ID="+id)...)
}

// Two servers cannot have one id: the second does not start, with an error, and does not
// disturb the first. After any end of the first, the next server has its pages.
func TestSecondServerWithOneIDRefuses(t *testing.T) {
	root := filepath.Join(t.TempDir(), "pages")
	own := filepath.Join(root, "instances", "gpu0")
	text := prompt(t, 600, 4)
	first := instance(t, root, "gpu0")
	first.ask(text, 33)
	held := first.ask(text, 33)

	refused, err := ollamatest.Start(first.context(), ollamatest.Options{ModelsDir: shared.models, Env: []string{
		"OLLAMA_KV_TIERING=1", "OLLAMA_KV_TIER_LOCAL=" + root, "OLLAMA_KV_INSTANCE_ID=gpu0",
	}})
	if err == nil {
		require.NoError(t, refused.Close())
	}
	require.ErrorContains(t, err, "OLLAMA_KV_INSTANCE_ID=gpu0 is in use: another server keeps its pages in "+own)
	require.ErrorContains(t, err, "stop that one, or give this one another id")

	first.unload()
	got := first.ask(text, 33)
	require.Equal(t, 599, got.restored, "the first is not disturbed")
	requireSame(t, held, got, "the first is not disturbed")

	// kills the server alone: its runner, which does not hold the directory, may live on
	serverOnly, err := os.FindProcess(first.PID())
	require.NoError(t, err)
	require.NoError(t, serverOnly.Kill())
	second := instance(t, root, "gpu0")
	got = second.ask(text, 33)
	require.Equal(t, 599, got.restored, "the first was killed")
	requireSame(t, held, got, "the first was killed")
	require.NoError(t, first.KillServer())
}

// Servers with different ids keep their local pages to themselves and share the remote ones.
func TestServersWithDifferentIDs(t *testing.T) {
	root, remote := filepath.Join(t.TempDir(), "pages"), remoteDir(t)
	env := []string{"OLLAMA_KV_TIER_REMOTE=" + remote, "OLLAMA_KV_TIER_LOCAL_GB=0.002"}
	a := instance(t, root, "a", env...)
	b := instance(t, root, "b", env...)
	text := prompt(t, 900, 5)
	a.ask(text, 33)
	held := a.ask(text, 33)
	a.unload()
	require.NotEmpty(t, files(t, filepath.Join(root, "instances", "a"), ".kvp"))
	require.Zero(t, b.ask(text, 4).restored, "pages local to the other server")
	b.unload()
	require.NotEmpty(t, files(t, filepath.Join(root, "instances", "b"), ".kvp"))
	require.NoDirExists(t, filepath.Join(root, "v1"))

	// the end of a conversation moves first: more conversations until its beginning has
	// moved, too
	for seed := range int64(3) {
		a.ask(prompt(t, 900, 60+seed), 4)
	}
	a.unload()
	c := instance(t, root, "c", env...)
	mark := c.LogMark()
	got := c.ask(text, 33)
	require.Equal(t, 899, got.restored, "pages in the remote directory")
	require.Regexp(t, `from=\S*remote`, c.Logs()[mark:])
	requireSame(t, held, got, "from the remote directory")
}

// An id that cannot be the name of a directory turns tiering off; the server still serves.
func TestUnusableIDLeavesTieringOff(t *testing.T) {
	s := instance(t, filepath.Join(t.TempDir(), "pages"), "../elsewhere")
	s.ask(prompt(t, 300, 7), 4)
	require.Contains(t, s.Logs(), "kv tier: off for this server")
	require.NotContains(t, s.Logs(), "kv tier: on")
	require.Empty(t, files(t, filepath.Dir(s.root), ".kvp"))
}
