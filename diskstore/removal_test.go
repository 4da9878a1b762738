package diskstore

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// requireCovered records every store's numbers in a root's ledger, and requires the ledger's
// figure, without any claim, to be at least the bytes of the files.
func requireCovered(t *testing.T, root string, stores ...*Store) {
	t.Helper()
	for _, s := range stores {
		lv := s.local
		if root == s.opt.Remote.Root {
			lv = s.remote
		}
		require.NoError(t, lv.book.Record(ctx))
	}
	l := readLedgerFile(t, Options{Local: TierConfig{Root: root}})
	require.LessOrEqual(t, occupied(t, root), l.Bytes)
}

// rivals are two stores on one root, as of two processes. before calls do once, before the
// first store's next operation of a kind on a page.
func rivals(t *testing.T, edit ...func(*Options)) (mine, other *Store, before func(op vfs.Op, do func())) {
	inj := vfs.Inject(quickFS)
	o := testOptions(t, edit...)
	other = open(t, o)
	o.FS = inj
	mine = open(t, o)
	return mine, other, func(op vfs.Op, do func()) {
		var once sync.Once
		inj.Watch(func(seen vfs.Op, paths ...string) {
			if seen == op && filepath.Ext(paths[len(paths)-1]) == dir.PageExt {
				once.Do(do)
			}
		})
	}
}

// TestRemovalIsSubtractedOnce: another process removes a page just before this process does.
func TestRemovalIsSubtractedOnce(t *testing.T) {
	for name, remove := range map[string]func(t *testing.T, s *Store, infos []tier.Info){
		"eviction": func(t *testing.T, s *Store, infos []tier.Info) { s.local.room.EvictAll(ctx, infos, 1, 1) },
		"purge": func(t *testing.T, s *Store, infos []tier.Info) {
			_, err := s.local.purge(ctx, purge{fingerprint: s.opt.Fingerprint, removed: func(tier.Info) {}})
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			mine, other, before := rivals(t)
			putChain(t, mine, prompt(1, testTokens))
			infos := listAll(t, mine.local)
			putChain(t, mine, prompt(2, 5*testTokens))
			requireCovered(t, mine.opt.Local.Root, mine)
			require.NoError(t, other.local.book.Refresh(ctx))
			before(vfs.OpRemove, func() { other.local.room.EvictAll(ctx, infos, 1, 1) })
			if name == "purge" {
				infos = listAll(t, mine.local)
				before(vfs.OpRemove, func() { other.local.room.EvictAll(ctx, infos, 1<<40, 1<<40) })
			}
			remove(t, mine, infos)
			putChain(t, mine, prompt(3, 5*testTokens))
			requireCovered(t, mine.opt.Local.Root, mine, other)
		})
	}
}

// TestTailsReplacedTwiceAreSubtractedOnce: several slots store tails of one parent, each of
// which makes the same tail superfluous.
func TestTailsReplacedTwiceAreSubtractedOnce(t *testing.T) {
	s := open(t, testOptions(t))
	for round := range 60 {
		p := putChain(t, s, prompt(round, testTokens))[0]
		base := []int32{1, 2}
		require.NoError(t, s.Put(ctx, pageOf(t, p.Key(), testTokens, base)))
		var slots sync.WaitGroup
		for slot := range 4 {
			longer := pageOf(t, p.Key(), testTokens, []int32{1, 2, int32(10 + slot), 5})
			slots.Add(1)
			go func() {
				defer slots.Done()
				_ = s.Put(ctx, longer)
			}()
		}
		slots.Wait()
	}
	require.Zero(t, s.Stats().PutErrors)
	requireCovered(t, s.opt.Local.Root, s)
}

// TestReplacedPageIsSubtractedOnce: a page is replaced by a page with more sections, and
// another process has removed the first page a moment before.
func TestReplacedPageIsSubtractedOnce(t *testing.T) {
	mine, other, before := rivals(t)
	tokens := prompt(1, testTokens)
	some := layoutOf(t, testSections[:3], testTokens)
	require.NoError(t, mine.Put(ctx, &pagefile.Page{Parent: mine.opt.Fingerprint, Tokens: tokens, Layout: some, Payload: make([]byte, some.Size())}))
	requireCovered(t, mine.opt.Local.Root, mine)
	require.NoError(t, other.local.book.Refresh(ctx))
	infos := listAll(t, mine.local)
	before(vfs.OpRename, func() { other.local.room.EvictAll(ctx, infos, 1, 1) })
	putChain(t, mine, tokens)
	requireCovered(t, mine.opt.Local.Root, mine, other)
}

// TestQuarantinedVictimIsNotSubtracted: a page found damaged in its demotion takes as much
// room in quarantine.
func TestQuarantinedVictimIsNotSubtracted(t *testing.T) {
	s, o := openNew(t, withRemote(t))
	putChain(t, s, prompt(1, testTokens))
	info := listAll(t, s.local)[0]
	path := filePath(o.Local.Root, info.Name)
	flipAt(t, path, -pagefile.FooterBytes-1)
	require.NoError(t, os.Chtimes(path, info.Used, info.Used))
	requireCovered(t, o.Local.Root, s)
	s.local.room.EvictAll(ctx, []tier.Info{info}, 1, 1)
	require.Len(t, filesIn(t, filepath.Join(o.Local.Root, storetest.VersionDir, storetest.QuarantineDir), dir.PageExt), 1)
	requireCovered(t, o.Local.Root, s)
}

// TestQuarantineThatCannotBeEmptied: files removed before an error are not durably removed,
// and not subtracted.
func TestQuarantineThatCannotBeEmptied(t *testing.T) {
	s, o, inj := openInjected(t)
	for _, p := range putChain(t, s, prompt(1, 3*testTokens)) {
		moved, err := s.local.files.Quarantine(ctx, tier.Info{Name: s.pages.Page(p.Key())}, "test")
		require.NoError(t, err)
		require.True(t, moved)
	}
	requireCovered(t, o.Local.Root, s)
	booked := readLedgerFile(t, o).Bytes
	r := &Root{s: s}
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRemove}, Path: regexp.MustCompile(`quarantine`), Nth: 2, Err: syscall.EIO})
	_, err := r.DropQuarantined(ctx, func(pagefile.Key) bool { return true }, false)
	require.ErrorIs(t, err, syscall.EIO)
	require.NoError(t, s.local.book.Record(ctx))
	require.Equal(t, booked, readLedgerFile(t, o).Bytes)
}

// TestCountKeepsTheClaimOfAProcessThatBegan: a process that begins while another counts has
// claimed room that is not in the count.
func TestCountKeepsTheClaimOfAProcessThatBegan(t *testing.T) {
	o, inj := injected(t)
	counter := open(t, o)
	putChain(t, counter, prompt(1, testTokens))
	var late *Store
	var once sync.Once
	inj.Watch(func(op vfs.Op, paths ...string) {
		if op == vfs.OpReadDir && len(filepath.Base(paths[0])) == len("00") {
			once.Do(func() {
				o.FS = quickFS
				late = open(t, o)
				putChain(t, late, prompt(2, 5*testTokens)) // in shards that are not listed
			})
		}
	})
	scan(t, counter)
	require.NotNil(t, late)
	require.Contains(t, readLedgerFile(t, o).Claims, idOf(t, late.disk))
	require.LessOrEqual(t, occupied(t, o.Local.Root), recorded(t, o.Local.Root))
}

// TestCountKeepsTheClaimOfAClockThatDiffers: the clocks of two hosts differ by days, and the
// host that counts sees that the other holds its lock.
func TestCountKeepsTheClaimOfAClockThatDiffers(t *testing.T) {
	o := testOptions(t)
	writer, counter := open(t, o), open(t, o)
	putChain(t, writer, prompt(1, testTokens))
	for _, days := range []int{-3, 3} {
		counter.now = func() time.Time { return time.Now().AddDate(0, 0, days) }
		scan(t, counter)
		require.Contains(t, readLedgerFile(t, o).Claims, idOf(t, writer.disk), days)
	}
}

// TestTemporaryFileThatStaysCounts: an upload fails, and so does removing its file.
func TestTemporaryFileThatStaysCounts(t *testing.T) {
	s, o, inj := openInjected(t, withPages(t, 40))
	temp := regexp.MustCompile(`-\d+\.tmp$`)
	for seed := range 4 {
		inj.Reset()
		inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpSync}, Path: temp, Err: syscall.EIO})
		inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRemove}, Path: temp, Err: syscall.EIO})
		require.Error(t, s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(seed, testTokens))))
		inj.Reset()
		inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRemove}, Path: temp, Err: syscall.EIO})
		putChain(t, s, prompt(100+seed, testTokens))
		require.LessOrEqual(t, occupied(t, o.Local.Root), recorded(t, o.Local.Root), seed)
	}
	require.Len(t, filesIn(t, o.Local.Root, dir.TmpExt), 4)
	inj.Reset()
	putChain(t, s, prompt(200, testTokens))
	require.Empty(t, filesIn(t, o.Local.Root, dir.TmpExt), "removing the files is tried again")
	require.Zero(t, s.disk.Left())
	scan(t, s)
	requireCovered(t, o.Local.Root, s)
	require.Equal(t, occupied(t, o.Local.Root), readLedgerFile(t, o).Bytes)
}

// lossy carries out the next rename of a page and returns an error, like a network that loses
// an answer.
type lossy struct {
	vfs.FS
	lose *bool
}

func (l lossy) Rename(from, to string) error {
	err := l.FS.Rename(from, to)
	if err == nil && *l.lose && filepath.Ext(to) == dir.PageExt {
		*l.lose = false
		return syscall.EIO
	}
	return err
}

// TestRenameWhoseAnswerIsLost: the page exists, and counts.
func TestRenameWhoseAnswerIsLost(t *testing.T) {
	lose := false
	s := open(t, testOptions(t, withFS(lossy{quickFS, &lose})))
	lose = true
	require.ErrorIs(t, s.Put(ctx, pageOf(t, s.opt.Fingerprint, 0, prompt(1, testTokens))), syscall.EIO)
	require.Len(t, filesIn(t, s.opt.Local.Root, dir.PageExt), 1)
	requireCovered(t, s.opt.Local.Root, s)
	requireExact(t, s)
}

// TestCommitThatComesLateCounts: a demotion is given up, and the page appears nevertheless.
func TestCommitThatComesLateCounts(t *testing.T) {
	s, o, inj := openInjected(t, withRemote(t))
	putChain(t, s, prompt(1, testTokens))
	info := listAll(t, s.local)[0]
	gate := hold(inj, vfs.Rule{Ops: []vfs.Op{vfs.OpRename}, Path: regexp.MustCompile(regexp.QuoteMeta(o.Remote.Root) + `.*\.kvp$`)})
	given, up := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- s.demote(given, info) }()
	<-gate.Entered()
	up()
	require.ErrorIs(t, <-done, context.Canceled)
	gate.Open()
	for s.guard.Left() > 0 { // until the worker has seen its end
		_, err := s.guard.Space(ctx)
		require.NoError(t, err)
	}
	require.Len(t, filesIn(t, o.Remote.Root, dir.PageExt), 1)
	requireCovered(t, o.Remote.Root, s)
	requireExact(t, s)
}

// TestPutAfterAnotherProcessHasPurged: directories that this process has made are gone.
func TestPutAfterAnotherProcessHasPurged(t *testing.T) {
	o := testOptions(t)
	s, other := open(t, o), open(t, o)
	putChain(t, s, prompt(1, testTokens))
	all, err := other.local.purge(ctx, purge{fingerprint: o.Fingerprint, removed: func(tier.Info) {}})
	require.NoError(t, err)
	require.True(t, all)
	putChain(t, s, prompt(2, 3*testTokens)) // in other shards
}

// TestUnlinkThatHangsCounts: pages have been renamed in order to be removed, and the unlink
// hangs. Another machine counts meanwhile.
func TestUnlinkThatHangsCounts(t *testing.T) {
	page := physicalPage(t)
	s, o, inj := openInjected(t, withRemote(t), func(o *Options) { o.Remote.BudgetBytes = 40 * page })
	inRemote(t, s, 2*remoteWorkers)
	other := beside(t, o)
	s.guard.StepIn = 50 * time.Millisecond
	gate := hold(inj, vfs.Rule{Ops: []vfs.Op{vfs.OpRemove}, Path: regexp.MustCompile(`-gone\d+\.tmp$`)})
	for _, info := range listAll(t, other.remote)[:remoteWorkers] {
		_, err := s.remote.files.Drop(ctx, info)
		require.ErrorIs(t, err, tier.ErrTierTimeout)
		<-gate.Entered()
	}
	count(t, other.remote)
	require.LessOrEqual(t, occupied(t, o.Remote.Root), recorded(t, o.Remote.Root))
	gate.Open()
	idle(s.guard)
	count(t, other.remote)
	l, err := other.remote.book.Read(ctx)
	require.NoError(t, err)
	require.EqualValues(t, remoteWorkers*page, l.Bytes)
}

// TestRemovalWhileACountBegins: a fingerprint's pages and directories go just before a count
// reads the names of directories. The count has never seen those pages.
func TestRemovalWhileACountBegins(t *testing.T) {
	o, inj := injected(t, func(o *Options) { o.Fingerprint = testFingerprint(9) })
	unwanted := open(t, o)
	putChain(t, unwanted, prompt(1, 3*testTokens+1))
	require.NoError(t, unwanted.Close())
	o.Fingerprint = testFingerprint(1)
	s := open(t, o)
	putChain(t, s, prompt(2, 2*testTokens))
	require.NoError(t, s.Flush(ctx))

	removed, begun := 0, false
	inj.Watch(func(op vfs.Op, paths ...string) {
		if op != vfs.OpReadDir || filepath.Base(paths[0]) != storetest.VersionDir || begun {
			return
		}
		begun = true
		_, err := s.local.purge(ctx, purge{fingerprint: testFingerprint(9), removed: func(tier.Info) { removed++ }})
		require.NoError(t, err)
	})
	scan(t, s)
	require.Equal(t, 4, removed)
	requireCovered(t, o.Local.Root, s)
	requireExact(t, s)
}
