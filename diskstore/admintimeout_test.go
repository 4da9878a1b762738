package diskstore

import (
	"io"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/internal/vfs"
)

// hangingRoots are two roots with three pages and three tails in the local tier
// and a page in the remote one, and a tool that has opened them.
type hangingRoots struct {
	*Root
	*inspect.Roots
	t      *testing.T
	o      Options
	inj    *vfs.Injector
	local  pagefile.Name // of a page that continues nothing
	remote pagefile.Name
}

func openHanging(t *testing.T) *hangingRoots {
	o := someRoot(t)
	inj := vfs.Inject(quickFS)
	r, err := OpenRoot(ctx, RootOptions{Local: o.Local, Remote: o.Remote, FS: inj, Timeout: time.Minute})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	key := func(seed int) pagefile.Name {
		return pagefile.Name{Fingerprint: testFingerprint(1), Key: pagefile.ChainKey(testFingerprint(1), prompt(seed, testTokens), nil)}
	}
	roots, err := inspect.Open(ctx, inspect.Options{Local: o.Local.Root, Remote: o.Remote.Root, FS: inj, Timeout: time.Minute})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, roots.Close()) })
	h := &hangingRoots{Root: r, Roots: roots, t: t, o: o, inj: inj, local: key(0), remote: key(9)}
	return h
}

// hang lets operations below a root hang until the test ends, when they fail: one that
// was carried out then would change files that are being removed. What works has a
// minute, for the machine may be busy.
func (h *hangingRoots) hang(root string, ops ...vfs.Op) {
	var dirs []*dir.Tier
	for _, lv := range h.s.levels(tier.Local) {
		dirs = append(dirs, lv.dir())
	}
	for _, r := range h.Tiers {
		dirs = append(dirs, r.T)
	}
	for _, dir := range dirs {
		if dir.Root == root {
			dir.SetTimeout(20 * time.Millisecond)
		}
	}
	gate := vfs.NewGate()
	h.t.Cleanup(gate.Open)
	h.inj.Add(vfs.Rule{Path: regexp.MustCompile("^" + regexp.QuoteMeta(root)), Ops: ops, Gate: gate, Err: syscall.EIO})
}

// silent requires the error of a root that does not answer, which it names.
func (h *hangingRoots) silent(err error, root string) {
	h.t.Helper()
	require.True(h.t, tier.NoAnswer(err), "%v", err)
	require.ErrorContains(h.t, err, root+" does not answer: ")
}

// TestToolsGoOnWithoutARemoteThatHangs asks for everything a tool can do.
func TestToolsGoOnWithoutARemoteThatHangs(t *testing.T) {
	for name, use := range map[string]func(h *hangingRoots, remote string){
		"usage": func(h *hangingRoots, remote string) {
			u, err := h.Usage(ctx)
			require.NoError(h.t, err)
			h.silent(u.RemoteErr, remote)
			require.Equal(h.t, 3, u.Local.Pages)
		},
		"check": func(h *hangingRoots, remote string) {
			checks, err := h.Check(ctx, inspect.CheckOptions{})
			require.NoError(h.t, err)
			require.NoError(h.t, checks[0].Err)
			require.Equal(h.t, 6, checks[0].Read)
			h.silent(checks[1].Err, remote)
		},
		"repair": func(h *hangingRoots, remote string) {
			found := 0
			checks, err := h.Check(ctx, inspect.CheckOptions{Repair: true, Found: func(inspect.Finding) { found++ }, Progress: func(string, int64, int64) {}})
			require.NoError(h.t, err)
			h.silent(checks[1].Err, remote)
			require.Zero(h.t, found)
		},
		"find a local page": func(h *hangingRoots, remote string) {
			found, err := h.Find(ctx, h.local.Key.String()[:8])
			require.NoError(h.t, err)
			require.Len(h.t, found, 1)
		},
		"find a remote page": func(h *hangingRoots, remote string) {
			_, err := h.Find(ctx, h.remote.Key.String()[:8])
			h.silent(err, remote)
		},
		"the last conversation": func(h *hangingRoots, remote string) {
			page, err := h.Recent(ctx, nil)
			require.NoError(h.t, err)
			require.Equal(h.t, tier.Local, page.Tier)
		},
		"the last conversation of none": func(h *hangingRoots, remote string) {
			_, err := h.Recent(ctx, func(pagefile.Key) bool { return false })
			h.silent(err, remote)
		},
		"export": func(h *hangingRoots, remote string) {
			chain, err := h.Chain(ctx, h.local)
			require.NoError(h.t, err)
			_, err = h.Export(ctx, chain, io.Discard, func(int64) {})
			require.NoError(h.t, err)
			_, err = h.Chain(ctx, h.remote)
			h.silent(err, remote)
		},
		"remove a model": func(h *hangingRoots, remote string) {
			all := func(FingerprintUsage) bool { return true }
			report, err := h.GC(ctx, GCOptions{Fingerprints: all})
			require.NoError(h.t, err)
			h.silent(report.RemoteErr, remote)
			require.Equal(h.t, 3, report.Local.Pages)
			drops, err := h.DropQuarantined(ctx, func(pagefile.Key) bool { return true }, false)
			h.silent(err, remote)
			require.Len(h.t, drops, 2)
		},
		"keep to the budget": func(h *hangingRoots, remote string) {
			h.s.local.book.Budget = 1
			report, err := h.GC(ctx, GCOptions{})
			require.NoError(h.t, err)
			h.silent(report.RemoteErr, remote)
			require.Zero(h.t, report.Local, "what should move down is not deleted")
			require.Len(h.t, filesIn(h.t, h.o.Local.Root, dir.PageExt), 6)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := openHanging(t)
			h.hang(h.o.Remote.Root)
			use(h, h.o.Remote.Root)
		})
	}
}

// TestToolsEndWhenAnyOperationHangs lets one kind of operation of a root hang.
// Whatever a tool does comes to an end; what it could not look at is no finding.
func TestToolsEndWhenAnyOperationHangs(t *testing.T) {
	for _, op := range []vfs.Op{
		vfs.OpOpen, vfs.OpReadDir, vfs.OpRemove, vfs.OpLstat, vfs.OpSyncDir, vfs.OpLock, vfs.OpSpace, vfs.OpRead,
		vfs.OpStat, vfs.OpClose, vfs.OpCreate, vfs.OpWrite, vfs.OpSync, vfs.OpRename,
	} {
		for _, tr := range []string{tier.Local, tier.Remote} {
			t.Run(tr+" "+string(op), func(t *testing.T) {
				h := openHanging(t)
				root := h.o.Local.Root
				if tr == tier.Remote {
					root = h.o.Remote.Root
				}
				h.hang(root, op)
				end := func(err error) {
					t.Helper()
					if err != nil {
						h.silent(err, root)
					}
				}
				checks, err := h.Check(ctx, inspect.CheckOptions{Repair: true, Found: func(f inspect.Finding) { t.Errorf("found %v", f) }})
				require.NoError(t, err)
				require.Len(t, checks, 2)
				for _, c := range checks {
					end(c.Err)
					require.True(t, c.Err == nil || c.Tier == tr)
				}
				u, err := h.Usage(ctx)
				end(err)
				end(u.RemoteErr)
				_, err = h.Find(ctx, h.local.Key.String()[:8])
				end(err)
				_, err = h.Recent(ctx, nil)
				end(err)
				if chain, err := h.Chain(ctx, h.local); err == nil {
					_, err := h.Export(ctx, chain, io.Discard, func(int64) {})
					end(err)
				} else {
					end(err)
				}
				report, err := h.GC(ctx, GCOptions{OlderThan: time.Nanosecond})
				end(err)
				end(report.RemoteErr)
				_, err = h.DropQuarantined(ctx, func(pagefile.Key) bool { return true }, false)
				end(err)
			})
		}
	}
}

// TestToolsOfALocalRootThatHangs is about the tier that everything else needs.
func TestToolsOfALocalRootThatHangs(t *testing.T) {
	h := openHanging(t)
	h.hang(h.o.Local.Root)
	checks, err := h.Check(ctx, inspect.CheckOptions{})
	require.NoError(t, err)
	h.silent(checks[0].Err, h.o.Local.Root)
	require.NoError(t, checks[1].Err)
	require.Equal(t, 1, checks[1].Read)
	found, err := h.Find(ctx, h.remote.Key.String()[:8])
	require.NoError(t, err)
	require.Len(t, found, 1)
	_, err = h.Usage(ctx)
	h.silent(err, h.o.Local.Root)

	_, err = OpenRoot(ctx, RootOptions{Local: h.o.Local, Remote: h.o.Remote, FS: h.inj, Timeout: time.Millisecond})
	h.silent(err, h.o.Local.Root)
	_, err = inspect.Open(ctx, inspect.Options{Local: h.o.Local.Root, Remote: h.o.Remote.Root, FS: h.inj, Timeout: time.Millisecond})
	h.silent(err, h.o.Local.Root)
}
