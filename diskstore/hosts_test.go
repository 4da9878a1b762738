package diskstore

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/recency"
	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
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
		s := start(t, o)
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

// shareOf returns options for a directory of a server, and a function that opens a store on
// another machine, whose clock is the server's.
func shareOf(t *testing.T, ahead time.Duration, edit ...func(*Options)) (o Options, sh *storetest.Share, right func(Options) *Store) {
	sh = storetest.NewShare(ahead)
	sh.Reach = vfs.ReachAll
	o = testOptions(t, edit...)
	machines := 0
	return o, sh, func(o Options) *Store {
		machines++
		o.FS = sh.From(fmt.Sprintf("right %d", machines))
		s := open(t, o)
		s.now = func() time.Time { return time.Now().Add(ahead) }
		return s
	}
}

// TestHostThatIsBehindMovesNothingBack: pages just used by other hosts are from the future
// only by the clock of the host that is behind, and keep their times. The host stores pages
// nevertheless.
func TestHostThatIsBehindMovesNothingBack(t *testing.T) {
	const behind = 48 * time.Hour
	page := physicalPage(t)
	o, sh, right := shareOf(t, behind, func(o *Options) { o.Local.BudgetBytes = 10 * page })
	a := right(o)
	tokens := prompt(1, 4*testTokens)
	putChain(t, a, tokens)
	require.NoError(t, a.Flush(ctx))
	times := make(map[pagefile.Name]time.Time)
	for _, info := range listAll(t, a.local) {
		times[info.Name] = info.Used
	}
	o.FS = sh.From("behind")
	b := open(t, o)
	for seed := range 12 {
		require.NoError(t, b.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(50+seed, testTokens))))
		require.NoError(t, b.Flush(ctx))
	}
	require.NotZero(t, b.Stats().Evicted)
	putChain(t, b, append(slices.Clone(tokens), prompt(2, 5*testTokens)...))
	look := right(o) // a store without cached times
	for _, info := range listAll(t, look.local) {
		if was, ok := times[info.Name]; ok {
			require.False(t, info.Used.Before(was), "moved back by %v", was.Sub(info.Used))
		}
	}
	require.Len(t, look.Find(ctx, Prompt{Tokens: tokens}).Exact, 4)

	newer := o
	newer.Fingerprint = testFingerprint(2)
	c := right(newer)
	usage, err := c.Survey(ctx)
	require.NoError(t, err)
	_, err = c.Reclaim(ctx, usage, func(other FingerprintUsage) bool {
		require.Less(t, other.Unused, time.Hour)
		return false
	})
	require.NoError(t, err)
}

// TestHostThatIsAheadDeletesNothingYoung: by the host's clock all pages are days old. Only
// pages that are old by the server's clock as well are deleted.
func TestHostThatIsAheadDeletesNothingYoung(t *testing.T) {
	const ahead = 48 * time.Hour
	o, sh, right := shareOf(t, -ahead, withRemote(t))
	a := right(o)
	putChain(t, a, prompt(1, 2*testTokens))
	for _, info := range listAll(t, a.local) {
		require.NoError(t, a.demote(ctx, info))
	}
	require.NoError(t, a.Flush(ctx))
	root, err := OpenRoot(ctx, RootOptions{Local: o.Local, Remote: o.Remote, FS: sh.From("ahead")})
	require.NoError(t, err)
	defer func() { require.NoError(t, root.Close()) }()
	report := gcWith(t, root, GCOptions{OlderThan: 24 * time.Hour})
	require.Equal(t, GCReport{}, report)

	newer := o
	newer.FS, newer.Fingerprint = sh.From("ahead"), testFingerprint(2)
	b := open(t, newer)
	usage, err := b.Survey(ctx)
	require.NoError(t, err)
	require.NotEmpty(t, usage.Local.Others)
	require.NotEmpty(t, usage.Remote.Others)
	asked := 0
	_, err = b.Reclaim(ctx, usage, func(other FingerprintUsage) bool {
		asked++
		require.Less(t, other.Unused, time.Hour)
		return false
	})
	require.NoError(t, err)
	require.Equal(t, 2, asked)

	touch := sh.From("ahead") // a machine that caches attributes
	past := time.Now().Add(-ahead - 25*time.Hour)
	for _, folder := range []string{o.Local.Root, o.Remote.Root} {
		for _, path := range filesIn(t, folder, dir.PageExt) {
			require.NoError(t, touch.Chtimes(path, past, past))
		}
	}
	report = gcWith(t, root, GCOptions{OlderThan: 24 * time.Hour})
	require.Equal(t, 2, report.Local.Pages)
	require.Equal(t, 2, report.Remote.Pages)
}

// TestHostThatIsAheadTrimsNothingYoung: a directory is nearly full, and by the clock of one of
// its hosts all pages are older than a minute. Only pages older by the server's clock as well
// are evicted.
func TestHostThatIsAheadTrimsNothingYoung(t *testing.T) {
	const pages = 128
	page := physicalPage(t)
	for _, ahead := range []time.Duration{3 * time.Minute, 48 * time.Hour} {
		o, sh, right := shareOf(t, -ahead, func(o *Options) { o.Local.BudgetBytes = pages * page })
		a := right(o)
		putPages(t, a, 0, pages-pages/room.TrimShare-2)
		require.NoError(t, a.Close())
		o.FS = sh.From("ahead")
		b := open(t, o)
		put := func(seed int) {
			putChain(t, b, prompt(seed, testTokens))
			require.NoError(t, b.Flush(ctx))
		}
		for i := range 3 {
			put(1000 + i)
		}
		require.Zero(t, b.Stats().Evicted)
		require.Zero(t, b.Stats().PutErrors)

		past := time.Now().Add(-ahead - time.Hour)
		for _, path := range filesIn(t, o.Local.Root, dir.PageExt) {
			require.NoError(t, o.FS.Chtimes(path, past, past))
		}
		b.now = func() time.Time { return time.Now().Add(recency.TouchEvery) }
		put(2000)
		require.NotZero(t, b.Stats().Evicted)
	}
}

// TestUnknownClockDeletesNothingByAge: while the server's clock is unknown, age is no reason
// to delete.
func TestUnknownClockDeletesNothingByAge(t *testing.T) {
	o, sh, right := shareOf(t, 0)
	putChain(t, right(o), prompt(1, testTokens))
	age(t, o.Local.Root, time.Now().Add(-48*time.Hour))
	root, err := OpenRoot(ctx, RootOptions{Local: o.Local, FS: noClock{sh.From("other")}})
	require.NoError(t, err)
	_, err = root.GC(ctx, GCOptions{OlderThan: 24 * time.Hour})
	require.ErrorIs(t, err, os.ErrPermission)
	require.ErrorContains(t, err, o.Local.Root)
	require.Len(t, filesIn(t, o.Local.Root, dir.PageExt), 1)
	require.NoError(t, root.Close())
	require.Empty(t, filesIn(t, filepath.Join(o.Local.Root, storetest.VersionDir, storetest.TmpDir), dir.TmpExt))
}

// noClock is a filesystem in which no file can be made.
type noClock struct{ vfs.FS }

func (noClock) Create(name string) (vfs.File, error) {
	return nil, errors.Join(&os.PathError{Op: "create", Path: name, Err: os.ErrPermission})
}

// TestGCOnAFullShare: there is no room for a file to read the clock. Files that are old by the
// latest known time of the share are deleted and make room.
func TestGCOnAFullShare(t *testing.T) {
	for _, ahead := range storetest.ClockOffsets {
		sh := storetest.NewShare(ahead)
		s, o := openNew(t, withFS(sh.From("a")), withRemote(t))
		inRemote(t, s, 4)
		require.NoError(t, s.Close())
		pages := filesIn(t, o.Remote.Root, dir.PageExt)
		for i, path := range pages {
			when := time.Now().Add(-ahead - 20*time.Hour)
			if i > 0 {
				when = when.Add(-20 * time.Hour)
			}
			require.NoError(t, os.Chtimes(path, when, when))
		}
		inj := vfs.Inject(sh.From("b"))
		inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpCreate, vfs.OpLock}, Path: regexp.MustCompile("^" + regexp.QuoteMeta(o.Remote.Root)), Err: syscall.EDQUOT})
		o.FS = inj
		tool, err := newStore(o, false)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, tool.Close()) })
		tool.remote.room.Left = func(tier.Info, bool) {}
		_, err = tool.remote.gcPicked(ctx, GCOptions{OlderThan: 30 * time.Hour})
		require.NoError(t, err)
		require.Equal(t, pages[:1], filesIn(t, o.Remote.Root, dir.PageExt), "server ahead by %v", ahead)
	}
}
