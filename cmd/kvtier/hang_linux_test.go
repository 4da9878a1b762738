package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/mounts"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
)

// TestVerbsOnAMountThatHangs runs every verb while the mount of the remote tier does not
// answer: each verb waits for the mount once, names the directory that does not answer, and
// does the rest of its work.
func TestVerbsOnAMountThatHangs(t *testing.T) {
	source, dir := t.TempDir(), t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(source, "kv"), 0o700))
	local := filepath.Join(dir, "root")
	identity := identityOf("qwen")
	keys := storeConversation(t, identity, local, filepath.Join(source, "kv"))
	last := keys[len(keys)-1].String()
	archive := filepath.Join(dir, "chat.kvx")

	for _, tc := range []struct {
		args   string
		status int
		stdout string // part of the output about the local tier
		silent bool   // the verb uses the mount, and names it in an error
	}{
		{"ls", 1, "local", true},
		{"stat", 1, "tails", true},
		{"check", exitUnchecked, "local     2", true},
		{"repair", exitUnchecked, "local     2", true},
		{"inspect " + last[:8], 0, "tail", true},
		{"inspect ffffffff", 1, "", true},
		{"export --last -o " + archive, 0, "wrote", true},
		{"export --key " + last[:8] + " --force -o " + archive, 0, "wrote", true},
		{"import " + archive, 0, "stored", false},
		{"gc --local-gb 0.000001", 1, "local     0        0 ", true},
		{"gc --older-than 30d", 1, "local     0        0 ", true},
		{"bench --gb 0.01", 0, "restore", false},
		{"rm --model " + identity[tierenv.KeyWeights], 1, "local     2        1 ", true},
	} {
		t.Run(tc.args, func(t *testing.T) {
			mount := mounts.NewPassthrough(t, source)
			remote := filepath.Join(mount.Dir, "kv")
			tierenvtest.Set(t, map[string]string{localVar: local, remoteVar: remote, "OLLAMA_MODELS": dir})
			_, err := os.Lstat(remote) // the kernel sends one request for all who ask for a name it does not know
			require.NoError(t, err)
			stalled := mount.Stall(mounts.AllOps...)
			status, stdout, stderr := kvtier(t, append(strings.Fields(tc.args), "--timeout", "1s")...)
			waits := len(stalled)
			mount.Heal()
			require.Equal(t, tc.status, status, stdout+stderr)
			require.Contains(t, stdout, tc.stdout)
			if tc.silent {
				require.Contains(t, stderr, remote+" does not answer: ")
				require.Contains(t, stderr, " took longer than 1s")
				require.Equal(t, 1, waits, "requests to the mount")
			}
			if tc.silent && status != 0 {
				require.Contains(t, stderr, "--timeout waits longer")
			}
		})
	}

	// The mount answers again.
	remote := filepath.Join(mounts.NewPassthrough(t, source).Dir, "kv")
	tierenvtest.Set(t, map[string]string{localVar: local, remoteVar: remote, "OLLAMA_MODELS": dir})
	status, _, stderr := kvtier(t, "check")
	require.Zero(t, status, stderr)
}

// TestInspectOfAPageWhoseReadHangs waits once for a mount that lists the page and gives neither
// the page's manifest nor the page.
func TestInspectOfAPageWhoseReadHangs(t *testing.T) {
	source := filepath.Join(t.TempDir(), "source")
	keys := storeConversation(t, identityOf("qwen"), filepath.Join(source, "kv"), "")
	mount := mounts.NewPassthrough(t, source)
	remote := filepath.Join(mount.Dir, "kv")
	tierenvtest.Set(t, map[string]string{localVar: t.TempDir(), remoteVar: remote})
	stalled := mount.Stall(mounts.OpOpen, mounts.OpRead)
	status, _, stderr := kvtier(t, "inspect", keys[0].String()[:8], "--timeout", "1s")
	waits := len(stalled)
	mount.Heal()
	require.Equal(t, 1, status)
	require.Contains(t, stderr, remote+" does not answer: ")
	require.Equal(t, 1, waits, "requests to the mount")
}

// TestVerbsWhileModelsHang: where the disk with Ollama's models does not answer, verbs show digests
// instead of names.
func TestVerbsWhileModelsHang(t *testing.T) {
	root, source := filepath.Join(t.TempDir(), "root"), t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(source, "manifests"), 0o700))
	identity := identityOf("qwen")
	storeConversation(t, identity, root, "")
	for args, text := range map[string]string{
		"ls": "weights " + short(identity[tierenv.KeyWeights]), "stat --prometheus": "ollama_kv_",
		"plan nothing": "",
	} {
		t.Run(args, func(t *testing.T) {
			mount := mounts.NewPassthrough(t, source)
			tierenvtest.Set(t, map[string]string{localVar: root, "OLLAMA_MODELS": mount.Dir})
			stalled := mount.Stall(mounts.AllOps...)
			var stdout, stderr string
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, stdout, stderr = kvtier(t, append(strings.Fields(args), "--timeout", "1s")...)
			}()
			select {
			case <-done:
			case <-time.After(time.Minute):
				t.Error("it hangs")
			}
			waits := len(stalled)
			mount.Heal()
			<-done
			require.Contains(t, stdout, text, stderr)
			t.Log(waits, "requests to the mount")
		})
	}
}
