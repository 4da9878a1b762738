package diskstore

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
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

// TestClaimOfAnEarlierBootGoes: a machine loses power with claimed room in a share, and
// returns the claim when its next server starts. Claims that may be another machine's stay.
func TestClaimOfAnEarlierBootGoes(t *testing.T) {
	const up = 10 * time.Minute
	page := physicalPage(t)
	for name, c := range map[string]struct {
		before, after string // names of the machine
		up, idle      time.Duration
		gone          bool
	}{
		"own restart":             {"m", "m", up, up + time.Minute, true},
		"it was up at the time":   {"m", "m", up, up - time.Minute, false},
		"it may only have paused": {"m", "m", time.Minute, 4 * time.Minute, false},
		"another machine":         {"m", "other", up, up + time.Minute, false},
		"without names":           {"", "", up, up + time.Minute, false},
	} {
		for _, ahead := range storetest.ClockOffsets {
			t.Run(fmt.Sprint(name, " ", ahead), func(t *testing.T) {
				sh := storetest.NewShare(ahead)
				sh.Reach = vfs.ReachAll
				sh.Machine = map[string]string{"boot1": c.before, "boot2": c.after}
				sh.Up = map[string]time.Duration{"boot1": time.Hour, "boot2": c.up}
				o := testOptions(t, withFS(sh.From("boot1")), withRemote(t), func(o *Options) { o.Remote.BudgetBytes = 200 * page })
				a := open(t, o)
				inRemote(t, a, 3)
				require.NoError(t, a.Flush(ctx))
				room, err := a.remote.book.Reserve(ctx, page) // the process dies before its next Flush
				require.NoError(t, err)
				room.Cancel()
				up, err := a.guard.Inner.Create(ctx, tiertest.Page(1))
				require.NoError(t, err)
				defer up.Abort()
				temps := filesIn(t, o.Remote.Root, dir.TmpExt)
				require.Len(t, temps, 1)
				left, id := temps[0], idOf(t, a.guard)
				sh.Die("boot1")
				when := time.Now().Add(-c.idle)
				for _, path := range []string{left, filepath.Join(filepath.Dir(left), id+dir.LockExt)} {
					require.NoError(t, os.Chtimes(path, when, when))
				}

				root := Options{Local: o.Remote}
				require.Contains(t, readLedgerFile(t, root).Claims, id)
				o.FS, o.Local.Root = sh.From("boot2"), filepath.Join(t.TempDir(), "local")
				b := open(t, o)
				require.Equal(t, !c.gone, readLedgerFile(t, root).Claims[id] != ledger.Claim{})
				require.FileExists(t, left, "the temporary file stays for an hour")
				require.LessOrEqual(t, occupied(t, o.Remote.Root), recorded(t, o.Remote.Root))
				require.NoError(t, b.Flush(ctx))
			})
		}
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
