package tierenv

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/tierenv/tierenvtest"
)

// page is a possible path of a page below a root.
const page = "v1/0123/ab/cdef.kvp"

func lay(t *testing.T, root, name string) {
	t.Helper()
	path := filepath.Join(root, filepath.FromSlash(name))
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, nil, 0o600))
}

// TestDefaultRoot: pages go to Ollama's own folder, and existing pages in /tmp are found
// there.
func TestDefaultRoot(t *testing.T) {
	ram := errors.New("is on a filesystem in memory")
	for name, tc := range map[string]struct {
		own, former       string // a file in it
		badOwn, badFormer error
		homeless          error
		wantFormer        bool
		says              string
	}{
		"nothing is anywhere":      {says: "Ollama's own folder"},
		"pages in the own folder":  {own: page, says: "Ollama's own folder"},
		"pages in the former one":  {former: page, wantFormer: true, says: "it holds pages, and"},
		"a tail in the former one": {former: "v1/0123/tails/ab/cdef/0123.kvp", wantFormer: true, says: "it holds pages"},
		"a server's own pages":     {former: "instances/tmp/" + page, wantFormer: true, says: "copy all of it there with cp -a"},
		"pages in both":            {own: page, former: page, says: "are not used"},
		"leftovers of a store":     {former: "v1/usage.json", says: "Ollama's own folder"},
		"damaged pages":            {former: "v1/quarantine/cdef.kvp", says: "Ollama's own folder"},
		"pages not yet written":    {former: "v1/tmp/cdef.kvp", says: "Ollama's own folder"},
		"the former is not safe":   {former: page, badFormer: ram, says: "Ollama's own folder"},
		"the own is not safe":      {own: page, badOwn: ram, wantFormer: true, says: "filesystem in memory; set OLLAMA_KV_TIER_LOCAL"},
		"no home directory":        {homeless: errors.New("no home"), wantFormer: true, says: "no home; set OLLAMA_KV_TIER_LOCAL"},
	} {
		folder := t.TempDir()
		r := roots{own: filepath.Join(folder, "own"), former: filepath.Join(folder, "former"), homeless: tc.homeless}
		r.unsuited = func(path string) error { return map[string]error{r.own: tc.badOwn, r.former: tc.badFormer}[path] }
		for root, file := range map[string]string{r.own: tc.own, r.former: tc.former} {
			if file != "" {
				lay(t, root, file)
			}
		}
		want := r.own
		if tc.wantFormer {
			want = r.former
		}
		got, err := r.choose()
		require.NoError(t, err, name)
		require.Equal(t, want, got.path, name)
		require.Contains(t, got.why, tc.says, name)
	}
	r := roots{own: "/own", former: "/former", unsuited: func(path string) error { return errors.New(path + " is not safe") }}
	_, err := r.choose()
	require.ErrorContains(t, err, "set OLLAMA_KV_TIER_LOCAL")
	require.ErrorContains(t, err, "/own is not safe; /former is not safe")
}

func TestUnsuitedDefaults(t *testing.T) {
	folder := t.TempDir()
	if ram, err := vfs.OS.IsRAM(folder); err != nil || ram {
		t.Skip("temporary files are in memory here")
	}
	inHome := func(name string) string { return filepath.Join(folder, name) }
	fresh := inHome("none/.ollama/kv-cache")
	require.NoError(t, unsuited(fresh))
	require.NoDirExists(t, inHome("none"))

	require.NoError(t, os.Mkdir(inHome("open"), 0o700))
	require.NoError(t, os.Chmod(inHome("open"), 0o777))
	require.ErrorIs(t, unsuited(inHome("open")), tier.ErrRootMode)
	require.NoError(t, os.Symlink(folder, inHome("link")))
	require.ErrorIs(t, unsuited(inHome("link")), tier.ErrRootSymlink)
	require.ErrorContains(t, unsuited("home/.ollama/kv-cache"), "not an absolute path")
	lay(t, folder, "file")
	require.Error(t, unsuited(inHome("file/below")))
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		require.ErrorContains(t, unsuited("/dev/shm/kvtier-none/kv-cache"), "in memory")
	}
	if os.Geteuid() != 0 { // root may write everywhere
		require.NoError(t, os.Mkdir(inHome("locked"), 0o500))
		require.ErrorContains(t, unsuited(inHome("locked/kv-cache")), "cannot be written")
	}
	if info, err := os.Stat("/sys/kernel"); err == nil && info.IsDir() {
		network, err := isNetwork("/sys/kernel")
		require.NoError(t, err)
		require.False(t, network)
	}
}

func TestVariableNamesTheRoot(t *testing.T) {
	tierenvtest.Set(t, map[string]string{LocalVariable: "/fast/pages"})
	got, err := localRoot()
	require.NoError(t, err)
	require.Equal(t, root{"/fast/pages", LocalVariable}, got)

	log, lines := tierenvtest.Logger()
	root{FormerRoot, "it holds pages"}.log(log)
	root{"/home/user/.ollama/kv-cache", "Ollama's own folder"}.log(log)
	require.Equal(t, 1, strings.Count(lines.String(), "level=WARN"))
	require.Contains(t, lines.String(), `local=`+FormerRoot+` reason="it holds pages"`)
	require.Contains(t, lines.String(), `local=/home/user/.ollama/kv-cache reason="Ollama's own folder"`)
}

// TestNamesOfANewRootAreSynced: of the root and of new directories above, also in one that is a link. A
// root that is there is left alone.
func TestNamesOfANewRootAreSynced(t *testing.T) {
	above := filepath.Join(t.TempDir(), "home")
	require.NoError(t, os.Symlink(t.TempDir(), above))
	inj := vfs.Inject(vfs.OS)
	var synced []string
	inj.Watch(func(op vfs.Op, paths ...string) {
		if op == vfs.OpSyncDir {
			synced = append(synced, filepath.Clean(paths[0]))
		}
	})
	c := Config{Local: filepath.Join(above, "a", "pages")}
	require.NoError(t, c.prepareRoot(inj))
	require.ElementsMatch(t, []string{above, filepath.Join(above, "a")}, synced)
	require.NoError(t, c.prepareRoot(inj))
	require.Len(t, synced, 2)
}
