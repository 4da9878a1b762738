package inspect

import (
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/internal/testrows"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// hangingRoots are two roots with three pages and three tails in the local tier and a page in
// the remote one, and a tool that has opened them.
type hangingRoots struct {
	*Roots
	t      *testing.T
	o      diskstore.Options
	inj    *vfs.Injector
	local  pagefile.Name // of a first page
	remote pagefile.Name
}

// twoTiers makes the roots.
func twoTiers(t *testing.T) diskstore.Options {
	o := testOptions(t, withRemote(t))
	for n := range byte(3) {
		o := o
		o.Fingerprint, o.Identity = storetest.Fingerprint(n+1), map[string]string{"model": string('a' + rune(n))}
		s := open(t, o)
		putChain(t, s, testrows.Prompt(int(n), storetest.Tokens+3), o.Fingerprint)
		require.NoError(t, s.Close())
	}
	above := o
	above.Local.Root, above.Identity = filepath.Join(t.TempDir(), "above"), map[string]string{"model": "a"}
	s := open(t, above)
	putChain(t, s, testrows.Prompt(9, storetest.Tokens))
	require.NoError(t, s.Close())
	above.Local.BudgetBytes = 1
	r, err := diskstore.OpenRoot(ctx, diskstore.RootOptions{Local: above.Local, Remote: above.Remote, FS: above.FS, Timeout: time.Minute})
	require.NoError(t, err)
	report, err := r.GC(ctx, diskstore.GCOptions{})
	require.NoError(t, err)
	require.Equal(t, 1, report.Local.Demoted)
	require.NoError(t, r.Close())
	return o
}

func openHanging(t *testing.T) *hangingRoots {
	o := twoTiers(t)
	inj := vfs.Inject(storetest.QuickFS)
	key := func(seed int) pagefile.Name {
		fp := storetest.Fingerprint(1)
		return pagefile.Name{Fingerprint: fp, Key: pagefile.ChainKey(fp, testrows.Prompt(seed, storetest.Tokens), nil)}
	}
	o.FS, o.Timeout = inj, time.Minute
	roots := rootsOf(t, o)
	return &hangingRoots{Roots: roots, t: t, o: o, inj: inj, local: key(0), remote: key(9)}
}

// hang makes operations below a root hang. Other operations have a minute, because the machine
// may be busy.
func (h *hangingRoots) hang(root string, ops ...vfs.Op) {
	for _, r := range h.tiers() {
		if r.t.Root == root {
			r.t.FS = vfs.Bound(r.t.FS, root, 20*time.Millisecond)
		}
	}
	storetest.Hang(h.t, h.inj, root, ops...)
}

// TestToolsGoOnWithoutARemoteThatHangs runs every operation of a tool.
func TestToolsGoOnWithoutARemoteThatHangs(t *testing.T) {
	for name, use := range map[string]func(h *hangingRoots, remote string){
		"check": func(h *hangingRoots, remote string) {
			checks, err := h.Check(ctx, CheckOptions{})
			require.NoError(h.t, err)
			require.NoError(h.t, checks[0].Err)
			require.Equal(h.t, 6, checks[0].Read)
			storetest.RequireSilent(h.t, checks[1].Err, remote)
		},
		"repair": func(h *hangingRoots, remote string) {
			found := 0
			checks, err := h.Check(ctx, CheckOptions{Repair: true, Found: func(Finding) { found++ }, Progress: func(string, int64, int64) {}})
			require.NoError(h.t, err)
			storetest.RequireSilent(h.t, checks[1].Err, remote)
			require.Zero(h.t, found)
		},
		"find a local page": func(h *hangingRoots, remote string) {
			found, err := h.Find(ctx, h.local.Key.String()[:8])
			require.NoError(h.t, err)
			require.Len(h.t, found, 1)
		},
		"find a remote page": func(h *hangingRoots, remote string) {
			_, err := h.Find(ctx, h.remote.Key.String()[:8])
			storetest.RequireSilent(h.t, err, remote)
		},
		"the last conversation": func(h *hangingRoots, remote string) {
			page, err := h.Recent(ctx, nil)
			require.NoError(h.t, err)
			require.Equal(h.t, tier.Local, page.Tier)
		},
		"the last conversation of none": func(h *hangingRoots, remote string) {
			_, err := h.Recent(ctx, func(pagefile.Key) bool { return false })
			storetest.RequireSilent(h.t, err, remote)
		},
		"export": func(h *hangingRoots, remote string) {
			_, err := h.Export(ctx, h.local, io.Discard, noProgress)
			require.NoError(h.t, err)
			_, err = h.Export(ctx, h.remote, io.Discard, noProgress)
			storetest.RequireSilent(h.t, err, remote)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := openHanging(t)
			h.hang(h.o.Remote.Root)
			use(h, h.o.Remote.Root)
		})
	}
}

// TestToolsEndWhenAnyOperationHangs makes one kind of operation of a root hang. Every
// operation of a tool ends; entries that could not be checked are not findings.
func TestToolsEndWhenAnyOperationHangs(t *testing.T) {
	storetest.EachHang(t, func(t *testing.T, tr string, op vfs.Op) {
		h := openHanging(t)
		root := h.o.Local.Root
		if tr == tier.Remote {
			root = h.o.Remote.Root
		}
		h.hang(root, op)
		end := func(err error) {
			t.Helper()
			storetest.RequireEnded(t, err, root)
		}
		checks, err := h.Check(ctx, CheckOptions{Repair: true, Found: func(f Finding) { t.Errorf("found %v", f) }})
		require.NoError(t, err)
		require.Len(t, checks, 2)
		for _, c := range checks {
			end(c.Err)
			require.True(t, c.Err == nil || c.Tier == tr)
		}
		_, err = h.Find(ctx, h.local.Key.String()[:8])
		end(err)
		_, err = h.Recent(ctx, nil)
		end(err)
		_, err = h.Export(ctx, h.local, io.Discard, noProgress)
		end(err)
	})
}

// TestToolsOfALocalRootThatHangs: operations of tools end with the local root's error.
func TestToolsOfALocalRootThatHangs(t *testing.T) {
	h := openHanging(t)
	h.hang(h.o.Local.Root)
	checks, err := h.Check(ctx, CheckOptions{})
	require.NoError(t, err)
	storetest.RequireSilent(t, checks[0].Err, h.o.Local.Root)
	require.NoError(t, checks[1].Err)
	require.Equal(t, 1, checks[1].Read)
	found, err := h.Find(ctx, h.remote.Key.String()[:8])
	require.NoError(t, err)
	require.Len(t, found, 1)
}
