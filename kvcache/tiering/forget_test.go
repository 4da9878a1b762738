package tiering

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
)

// digests of a blob's name: 64 times the same digit
func digest(digit string) string { return strings.Repeat(digit, 64) }

// identified is the identity of a model's pages.
func identified(weights, adapters, namespace, cacheType string) map[string]string {
	return map[string]string{tierenv.KeyWeights: weights, tierenv.KeyAdapters: adapters, tierenv.KeyNamespace: namespace, tierenv.KeyCacheType: cacheType}
}

// put stores a page of an identity below root and returns the page's name.
func put(t *testing.T, root string, identity map[string]string) pagefile.Key {
	t.Helper()
	ctx := context.Background()
	fp := tierenv.Fingerprint(identity)
	s, err := diskstore.Open(ctx, diskstore.Options{Fingerprint: fp, Identity: identity, PageTokens: 2, Local: diskstore.TierConfig{Root: root}})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	layout, err := pagefile.NewLayout([]pagefile.Section{{RowBytes: 8}}, 2)
	require.NoError(t, err)
	require.NoError(t, s.Put(ctx, &pagefile.Page{Parent: fp, Tokens: []int32{1, 2}, Layout: layout, Payload: make([]byte, layout.Size())}))
	return fp
}

// stored lists the fingerprints with pages below root.
func stored(t *testing.T, root string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "v1", "*", "??", "*.kvp"))
	require.NoError(t, err)
	var found []string
	for _, path := range paths {
		found = append(found, filepath.Base(filepath.Dir(filepath.Dir(path))))
	}
	return found
}

// quarantined puts a copy of an identity's page below root into quarantine.
func quarantined(t *testing.T, root string, identity map[string]string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "v1", tierenv.Fingerprint(identity).String(), "??", "*.kvp"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	page, err := os.ReadFile(paths[0])
	require.NoError(t, err)
	dir := filepath.Join(root, "v1", "quarantine")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	key := strings.TrimSuffix(filepath.Base(paths[0]), ".kvp")
	require.NoError(t, os.WriteFile(filepath.Join(dir, key+".damaged.1.kvp"), page, 0o600))
}

func TestForget(t *testing.T) {
	forgotten = newForgetting()
	local, remote, blobs := filepath.Join(t.TempDir(), "pages"), t.TempDir(), t.TempDir()
	require.NoError(t, os.Chmod(remote, 0o700))
	tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": local, "OLLAMA_KV_TIER_REMOTE": remote, "OLLAMA_KV_TIER_NAMESPACE": "team"})
	gone, kept := digest("1"), digest("2")
	require.NoError(t, os.WriteFile(filepath.Join(blobs, "sha256-"+kept), nil, 0o600))

	f16 := identified(gone, "", "team", "f16")
	lora := identified(kept, digest("4")+","+gone, "team", "f16")
	for _, root := range []string{local, remote} {
		put(t, root, f16)
		put(t, root, identified(gone, "", "team", "q8_0"))
		put(t, root, lora)
	}
	others := []string{
		put(t, local, identified(kept, "", "team", "f16")).String(),
		put(t, local, identified(gone, "", "another team", "f16")).String(),
	}

	quarantined(t, local, f16)
	path := filepath.Join(blobs, "sha256-"+gone)
	forget(filepath.Join(blobs, "sha256-"+kept), filepath.Join(blobs, "model.gguf"))
	require.Len(t, stored(t, local), 5, "blobs that another model uses, and a file that is no blob")
	require.False(t, Forgotten(path))

	forget(path)
	require.ElementsMatch(t, others, stored(t, local))
	require.Empty(t, stored(t, remote))
	damaged, err := filepath.Glob(filepath.Join(local, "v1", "quarantine", "*"))
	require.NoError(t, err)
	require.Empty(t, damaged)
	require.True(t, Forgotten(filepath.Join(blobs, "sha256-"+kept), path))

	// a runner that was still loaded stores another page, under a fingerprint without a manifest
	late := put(t, local, f16)
	require.NoError(t, os.Remove(filepath.Join(local, "v1", late.String(), "manifest.json")))
	forget(path)
	require.ElementsMatch(t, others, stored(t, local))

	// the model is pulled again
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.False(t, Forgotten(path))
	back := put(t, local, f16)
	forget(path, filepath.Join(blobs, "sha256-"+digest("3")))
	require.ElementsMatch(t, append(others, back.String()), stored(t, local))
}

// A removal that is called for with a lock held waits for nothing; the end of the server waits
// for the removal.
func TestForgetLater(t *testing.T) {
	local := on(t, nil)
	release, err := ClaimInstance()
	require.NoError(t, err)
	gone := digest("6")
	put(t, local, identified(gone, "", "", "f16"))

	earlier := make(chan struct{}) // a removal of another model is on its way
	forgotten.mu.Lock()
	forgotten.last = earlier
	forgotten.mu.Unlock()
	path := filepath.Join(t.TempDir(), "sha256-"+gone)
	ForgetLater(path)
	require.True(t, Forgotten(path))
	require.Len(t, stored(t, local), 1)

	close(earlier)
	release()
	require.Empty(t, stored(t, local))
}

func TestForgetWithoutPages(t *testing.T) {
	on(t, nil)
	log, lines := tierenvtest.Logger()
	forgotten.add([]string{digest("5")})
	forgotten.remove(context.Background(), []string{digest("5")}, log)
	require.Empty(t, lines.String())

	tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": "pages"})
	require.False(t, forgotten.remove(context.Background(), []string{digest("5")}, log))
	require.Contains(t, lines.String(), "kv tier: could not remove all pages of a model that was removed")
}

// restart makes this process a server that starts, repeats removals and ends.
func restart(t *testing.T) {
	t.Helper()
	forgotten = newForgetting()
	release, err := ClaimInstance()
	require.NoError(t, err)
	settleRemovals()
	release()
}

// forget is Forget on a machine that is not too busy for forgetPatience.
func forget(blobs ...string) {
	Forget(blobs...)
	settleRemovals()
}

func settleRemovals() {
	if last := forgotten.removals(); last != nil {
		<-last
	}
}

// notes lists the notes for the next start.
func notes(t *testing.T, local string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(local, forgetDir, "*"))
	require.NoError(t, err)
	return names
}

// A model is removed while it answers, its runner stores more pages, and the server is killed.
// The next start removes them.
func TestForgottenAfterAKill(t *testing.T) {
	local := on(t, nil)
	gone, kept := digest("6"), put(t, local, identified(digest("7"), "", "", "f16")).String()
	path := filepath.Join(t.TempDir(), "sha256-"+gone)
	Forget(path)
	put(t, local, identified(gone, "", "", "f16"))

	restart(t)
	require.Equal(t, []string{kept}, stored(t, local))
	require.Empty(t, notes(t, local))
	put(t, local, identified(gone, "", "", "f16")) // by a server that still has the model
	restart(t)
	require.Len(t, stored(t, local), 2, "one removal is one removal")
}

// A note of another namespace stays for its server, and a model that was pulled again keeps its pages.
func TestForgottenElsewhereOrPulledAgain(t *testing.T) {
	local := filepath.Join(t.TempDir(), "pages")
	vars := map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": local, "OLLAMA_KV_TIER_NAMESPACE": "team"}
	tierenvtest.Set(t, vars)
	path := filepath.Join(t.TempDir(), "sha256-"+digest("6"))
	Forget(path)
	page := put(t, local, identified(digest("6"), "", "team", "f16")).String()

	t.Setenv("OLLAMA_KV_TIER_NAMESPACE", "another team")
	restart(t)
	require.Equal(t, []string{page}, stored(t, local))
	require.Len(t, notes(t, local), 1)

	require.NoError(t, os.WriteFile(path, nil, 0o600))
	t.Setenv("OLLAMA_KV_TIER_NAMESPACE", "team")
	restart(t)
	require.Equal(t, []string{page}, stored(t, local))
	require.Empty(t, notes(t, local))
}

// A model on a disk that is not mounted is not gone: its pages stay.
func TestForgottenWithoutTheModels(t *testing.T) {
	local, models := filepath.Join(t.TempDir(), "pages"), filepath.Join(t.TempDir(), "blobs")
	tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": local})
	require.NoError(t, os.Mkdir(models, 0o700))
	path := filepath.Join(models, "sha256-"+digest("6"))
	Forget(path)
	require.NoError(t, os.WriteFile(path, nil, 0o600)) // pulled again
	page := put(t, local, identified(digest("6"), "", "", "f16")).String()
	require.NoError(t, os.Rename(models, models+"-elsewhere"))
	restart(t)
	require.Equal(t, []string{page}, stored(t, local))
}

// While the remote tier does not answer, the note stays.
func TestForgottenWithoutTheRemote(t *testing.T) {
	local, remote := filepath.Join(t.TempDir(), "pages"), filepath.Join(t.TempDir(), "share")
	tierenvtest.Set(t, map[string]string{"OLLAMA_KV_TIERING": "1", "OLLAMA_KV_TIER_LOCAL": local, "OLLAMA_KV_TIER_REMOTE": remote})
	Forget(filepath.Join(t.TempDir(), "sha256-"+digest("6")))
	restart(t)
	require.Len(t, notes(t, local), 1)

	require.NoError(t, os.Mkdir(remote, 0o700))
	put(t, remote, identified(digest("6"), "", "", "f16"))
	restart(t)
	require.Empty(t, stored(t, remote))
	require.Empty(t, notes(t, local))
}

// A damaged note, or one of nothing, is removed, and no more than a bounded number is kept.
func TestNotesThatCannotBeUsed(t *testing.T) {
	local := on(t, nil)
	dir := filepath.Join(local, forgetDir)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.Chmod(local, 0o700))
	page := put(t, local, identified(digest("6"), "", "", "f16")).String()
	for name, content := range map[string]string{
		"none.json": "", "other.json": "[1]", "relative.json": `{"blobs":["sha256-` + digest("6") + `"]}`, "no blob.json": `{"blobs":["/etc/passwd"]}`, "cut.tmp": "{",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	restart(t)
	require.Equal(t, []string{page}, stored(t, local))
	require.Empty(t, notes(t, local))

	for range notesMax + 10 {
		require.NoError(t, keepNote(filepath.Join(t.TempDir(), "sha256-"+digest("6"))))
	}
	require.Len(t, notes(t, local), notesMax)
}
