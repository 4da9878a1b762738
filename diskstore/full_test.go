package diskstore

import (
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/move"
	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestFullShareKeepsItsPages: the remote filesystem takes no pages, and deleting pages frees
// nothing, as where snapshots hold the space or other data uses up a quota. Its pages stay,
// except those deleted for the first page, and new pages move there as soon as there is space.
func TestFullShareKeepsItsPages(t *testing.T) {
	const there, here = 4 * move.Batch, 64
	page := physicalPage(t)
	for _, errno := range []syscall.Errno{syscall.EDQUOT, syscall.ENOSPC} {
		t.Run(errno.Error(), func(t *testing.T) {
			s, o, inj := openInjected(t, withRemote(t), func(o *Options) { o.Local.BudgetBytes = here * page })
			inRemote(t, s, there)
			age(t, o.Remote.Root, time.Now().Add(-time.Hour))
			inj.Add(vfs.Rule{
				Path: regexp.MustCompile("^" + regexp.QuoteMeta(o.Remote.Root)), Ops: []vfs.Op{vfs.OpWrite}, Err: errno,
			})
			put := func(from, to int) {
				for seed := from; seed < to; seed++ {
					require.NoError(t, s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(seed, testTokens))))
					require.NoError(t, s.Flush(ctx))
				}
			}
			put(100, 100+here+here/4)
			left := len(listAll(t, s.remote))
			require.GreaterOrEqual(t, left, there-move.Batch)
			require.GreaterOrEqual(t, s.Stats().Local.Pages, here-(1+here/room.OutageShare), "pages that fit stay, as in any outage")

			inj.Reset()
			put(300, 300+here/4)
			require.Greater(t, len(listAll(t, s.remote)), left)
		})
	}
}

// TestFullDiskKeepsItsPages does as TestFullShareKeepsItsPages for the local filesystem.
func TestFullDiskKeepsItsPages(t *testing.T) {
	s, o, inj := openInjected(t)
	for seed := range 20 {
		putChain(t, s, prompt(seed, testTokens))
	}
	age(t, o.Local.Root, time.Now().Add(-time.Hour))
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpWrite}, Path: regexp.MustCompile(`-\d+\.tmp$`), Err: syscall.ENOSPC})
	for seed := range 20 {
		require.ErrorIs(t, s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(100+seed, testTokens))), tier.ErrNoSpace)
	}
	require.GreaterOrEqual(t, len(listAll(t, s.local)), 20-2, "pages were deleted for one Put only")
	inj.Reset()
	putChain(t, s, prompt(200, testTokens))
	readChain(t, s, prompt(200, testTokens), testTokens)
}
