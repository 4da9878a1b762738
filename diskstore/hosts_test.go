package diskstore

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestOneMachineWritesWhereLocksDoNotReach: the second machine only reads, and logs a remedy
// once.
func TestOneMachineWritesWhereLocksDoNotReach(t *testing.T) {
	for _, reach := range []vfs.Reach{vfs.ReachHost, vfs.ReachDisk, vfs.ReachAll} {
		sh := storetest.NewShare(time.Hour)
		sh.Reach = reach
		var log strings.Builder
		on := func(host string) Options {
			o := testOptions(t, withFS(sh.From(host)), withRemote(t))
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
			return o
		}
		oa, ob, beside := on("a"), on("b"), on("a")
		ob.Remote, beside.Remote = oa.Remote, oa.Remote
		a := open(t, oa)
		inRemote(t, a, 2)
		require.NoError(t, a.Flush(ctx))

		a2 := open(t, beside) // another process of the same machine
		inRemote(t, a2, 3)

		b := open(t, ob)
		readChain(t, b, prompt(0, testTokens), testTokens)
		p := putChain(t, b, prompt(9, testTokens))[0]
		info := mustStat(t, b.disk, b.pages.Page(p.Key()))
		err := b.demote(ctx, info)
		if reach == vfs.ReachAll {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, tier.ErrNotShared)
		require.ErrorIs(t, b.demote(ctx, info), tier.ErrNotShared)
		_, err = b.guard.Lock(ctx)
		require.ErrorIs(t, err, tier.ErrLocked)
		require.False(t, b.Stats().Remote.Down)
		require.Equal(t, 1, strings.Count(log.String(), "is only read"), "%s", log.String())
		require.Equal(t, reach == vfs.ReachHost, strings.Contains(log.String(), "do not reach other machines"))

		require.NoError(t, a.Close())
		require.NoError(t, a2.Close())
		require.NoError(t, b.Close())
		require.NoError(t, open(t, ob).demote(ctx, info))
	}
}

// TestLockFilesDoNotPileUp: where locks fail, each process that ends removes its own lock
// file.
func TestLockFilesDoNotPileUp(t *testing.T) {
	sh := storetest.NewShare(0)
	sh.NoLocks = true
	o := testOptions(t, withFS(sh.From("a")))
	for range 10 {
		s, err := Open(ctx, o)
		require.NoError(t, err)
		require.NoError(t, s.Put(ctx, pageOf(t, s.opt.Fingerprint, 0, prompt(1, testTokens))))
		require.NoError(t, s.Close())
	}
	s := open(t, o)
	aside, err := s.disk.Aside(ctx)
	require.NoError(t, err)
	require.Len(t, aside.Living, 1)
	require.Len(t, filesIn(t, filepath.Join(o.Local.Root, storetest.VersionDir, storetest.TmpDir), dir.LockExt), 1)
}

// idOf returns the id of the process that has opened a tier.
func idOf(t *testing.T, tr tier.Tier) (id string) {
	t.Helper()
	unchanged := errors.New("unchanged")
	_, err := tr.Account(ctx, func(_ []byte, own string) ([]byte, error) {
		id = own
		return nil, unchanged
	})
	require.ErrorIs(t, err, unchanged)
	return id
}
