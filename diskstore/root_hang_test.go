package diskstore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// hangingRoots are two roots with three pages and three tails in the local tier and a page in
// the remote one, and a tool that has opened them.
type hangingRoots struct {
	*Root
	t   *testing.T
	o   Options
	inj *vfs.Injector
}

func openHanging(t *testing.T) *hangingRoots {
	o := someRoot(t)
	inj := vfs.Inject(quickFS)
	r, err := OpenRoot(ctx, RootOptions{Local: o.Local, Remote: o.Remote, FS: inj, Timeout: time.Minute})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return &hangingRoots{Root: r, t: t, o: o, inj: inj}
}

// hang makes operations below a root hang. Other operations have a minute, because the machine
// may be busy.
func (h *hangingRoots) hang(root string, ops ...vfs.Op) {
	for _, lv := range h.s.tiers {
		if d := lv.root; d.Root == root {
			d.FS = vfs.Bound(d.FS, root, 20*time.Millisecond)
		}
	}
	storetest.Hang(h.t, h.inj, root, ops...)
}

// TestToolsGoOnWithoutARemoteThatHangs runs every operation of a tool.
func TestToolsGoOnWithoutARemoteThatHangs(t *testing.T) {
	for name, use := range map[string]func(h *hangingRoots, remote string){
		"usage": func(h *hangingRoots, remote string) {
			u, err := h.Usage(ctx)
			require.NoError(h.t, err)
			storetest.RequireSilent(h.t, u.RemoteErr, remote)
			require.Equal(h.t, 3, u.Local.Pages)
		},
		"remove a model": func(h *hangingRoots, remote string) {
			all := func(FingerprintUsage) bool { return true }
			report, err := h.GC(ctx, GCOptions{Fingerprints: all})
			require.NoError(h.t, err)
			storetest.RequireSilent(h.t, report.RemoteErr, remote)
			require.Equal(h.t, 3, report.Local.Pages)
			drops, err := h.DropQuarantined(ctx, func(pagefile.Key) bool { return true }, false)
			storetest.RequireSilent(h.t, err, remote)
			require.Len(h.t, drops, 2)
		},
		"keep to the budget": func(h *hangingRoots, remote string) {
			h.s.local.book.Budget = 1
			report, err := h.GC(ctx, GCOptions{})
			require.NoError(h.t, err)
			storetest.RequireSilent(h.t, report.RemoteErr, remote)
			require.Zero(h.t, report.Local, "pages that should move down are not deleted")
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

// TestToolsEndWhenAnyOperationHangs makes one kind of operation of a root hang. Every
// operation of a tool ends.
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
		u, err := h.Usage(ctx)
		end(err)
		end(u.RemoteErr)
		report, err := h.GC(ctx, GCOptions{OlderThan: time.Nanosecond})
		end(err)
		end(report.RemoteErr)
		_, err = h.DropQuarantined(ctx, func(pagefile.Key) bool { return true }, false)
		end(err)
	})
}

// TestToolsOfALocalRootThatHangs: operations of tools end with the local root's error.
func TestToolsOfALocalRootThatHangs(t *testing.T) {
	h := openHanging(t)
	h.hang(h.o.Local.Root)
	_, err := h.Usage(ctx)
	storetest.RequireSilent(t, err, h.o.Local.Root)

	_, err = OpenRoot(ctx, RootOptions{Local: h.o.Local, Remote: h.o.Remote, FS: h.inj, Timeout: time.Millisecond})
	storetest.RequireSilent(t, err, h.o.Local.Root)
}

// TestTimeoutOfARemoteRoot: the limit on one operation ends first, so the error names the
// operation that hangs.
func TestTimeoutOfARemoteRoot(t *testing.T) {
	o := someRoot(t)
	inj := vfs.Inject(quickFS)
	storetest.Hang(t, inj, o.Remote.Root)
	r, err := OpenRoot(ctx, RootOptions{Local: o.Local, Remote: o.Remote, FS: inj, Timeout: time.Second})
	require.NoError(t, err)
	u, err := r.Usage(ctx)
	require.NoError(t, err)
	storetest.RequireSilent(t, u.RemoteErr, o.Remote.Root)
	require.NoError(t, r.Close())
}
