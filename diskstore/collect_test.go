package diskstore

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
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

// age sets the times of all files below a root.
func age(t *testing.T, root string, when time.Time) {
	t.Helper()
	for _, path := range filesIn(t, root, dir.PageExt) {
		require.NoError(t, os.Chtimes(path, when, when))
	}
}

// physicalPage returns the disk space of a full test page on this filesystem.
func physicalPage(t testing.TB) int64 {
	s := open(t, testOptions(t))
	putChain(t, s, prompt(1, testTokens))
	return s.Stats().Local.Bytes
}

// withPages gives the local tier a budget for some pages.
func withPages(t testing.TB, pages int64) func(*Options) {
	budget := pages * physicalPage(t)
	return func(o *Options) { o.Local.BudgetBytes = budget }
}

// openFor opens a store whose local tier has a budget for some pages.
func openFor(t *testing.T, pages int64) *Store {
	t.Helper()
	return open(t, testOptions(t, withPages(t, pages)))
}

func TestEvictionIsLeastRecentlyUsedAndLeafFirst(t *testing.T) {
	page := physicalPage(t)
	s, o := openNew(t, func(o *Options) { o.Local.BudgetBytes = 8 * page })
	old, mid := prompt(1, 3*testTokens), prompt(2, 3*testTokens)
	putChain(t, s, old)
	age(t, o.Local.Root, time.Now().Add(-3*time.Hour))
	putChain(t, s, mid)
	require.NoError(t, s.Flush(ctx))
	require.Equal(t, 6, s.Stats().Local.Pages)

	// Touching the end of a chain keeps the whole chain: a page is useless without the pages
	// before it.
	touch(s, s.Find(ctx, Prompt{Tokens: old}).Exact[2])
	for _, ref := range s.Find(ctx, Prompt{Tokens: mid}).Exact {
		past := time.Now().Add(-2 * time.Hour)
		require.NoError(t, os.Chtimes(filePath(o.Local.Root, s.pages.Page(ref.Key)), past, past))
	}
	putChain(t, s, prompt(3, 3*testTokens)) // nine pages in a budget of eight
	require.NoError(t, s.Flush(ctx))
	require.LessOrEqual(t, s.Stats().Local.Bytes, o.Local.BudgetBytes)
	readChain(t, s, old, len(old))
	require.Less(t, tokensIn(s.Find(ctx, Prompt{Tokens: mid}).Exact), len(mid))
	readChain(t, s, prompt(3, 3*testTokens), 3*testTokens)
	readChain(t, s, mid, tokensIn(s.Find(ctx, Prompt{Tokens: mid}).Exact)) // the rest begins at position 0
	require.Equal(t, s.Stats().Local.Pages, int(9-s.Stats().Evicted))
	requireExact(t, s)
}

// TestEvictionNeverOrphansAPage rehearses the eviction of a tree and checks after each page that
// every remaining page has its parent.
func TestEvictionNeverOrphansAPage(t *testing.T) {
	s, o := openNew(t)
	trunk := prompt(1, 3*testTokens)
	for branch := range 4 {
		tokens := append(append([]int32{}, trunk[:(1+branch%3)*testTokens]...), prompt(10+branch, 2*testTokens+3)...)
		putChain(t, s, tokens)
	}
	same := time.Now().Add(-time.Hour)
	age(t, o.Local.Root, same) // equal times, so that the order needs headers
	infos := listAll(t, s.local)
	s.local.book.Budget = 1
	var order []tier.Info
	s.local.room.Left = func(info tier.Info, _ bool) { order = append(order, info) }
	require.NoError(t, s.local.room.Rehearse(ctx))
	requireLeafFirst(t, s, order, infos)
}

// requireLeafFirst checks that order has all files, each before the page that it continues.
func requireLeafFirst(t *testing.T, s *Store, order, infos []tier.Info) {
	t.Helper()
	require.Len(t, order, len(infos))
	gone := make(map[pagefile.Key]bool)
	for _, info := range order {
		gone[info.Key] = true
		for _, other := range infos {
			parent := s.chains.LinkIn(ctx, s.disk, other.Name).Parent
			require.False(t, parent == info.Key && !gone[other.Key], "a page goes before one that continues it")
		}
	}
}

// TestObsoletePagesLeaveFirst, though they were used later than others, and each before the page that it
// continues. Where nobody knows which pages are obsolete, or not in time, recency decides.
func TestObsoletePagesLeaveFirst(t *testing.T) {
	const no, yes, hangs = 0, 1, 2
	var answer atomic.Int32
	asked, release := make(chan struct{}, 1), make(chan struct{})
	o := testOptions(t, withPages(t, 16), func(o *Options) {
		o.Obsolete = func(use FingerprintUsage) bool {
			if answer.Load() == hangs {
				asked <- struct{}{}
				<-release
			}
			return answer.Load() == yes && use.Identity["weights"] == "gone"
		}
	})
	gone := o
	gone.Fingerprint, gone.Identity = testFingerprint(9), map[string]string{"weights": "gone"}
	v1 := filepath.Join(o.Local.Root, storetest.VersionDir)
	ours, orphans := filepath.Join(v1, o.Fingerprint.String()), filepath.Join(v1, gone.Fingerprint.String())
	s, theirs := open(t, o), open(t, gone)
	tokens := putPrompt(t, theirs, 1, 6*testTokens)
	putPages(t, s, 0, 8)
	seed := 8
	// step stores pages until others leave, and requires which.
	step := func(says int32, obsolete bool) {
		t.Helper()
		answer.Store(says)
		age(t, ours, time.Now().Add(-time.Hour))
		age(t, orphans, time.Now().Add(-5*time.Minute))
		before, others := len(filesIn(t, orphans, dir.PageExt)), len(filesIn(t, ours, dir.PageExt))
		for had := s.Stats().Evicted; s.Stats().Evicted == had; seed++ {
			putSettled(t, s, seed, seed+1)
			others++
		}
		left := len(filesIn(t, orphans, dir.PageExt))
		require.Equal(t, obsolete, left < before)
		require.Equal(t, obsolete, len(filesIn(t, ours, dir.PageExt)) == others)
		readChain(t, theirs, tokens, left*testTokens)
	}
	step(no, false)
	step(hangs, false)
	<-asked
	step(yes, false) // the question before is not answered yet
	close(release)
	require.Eventually(t, func() bool { return !s.local.asking.Hangs() }, time.Minute, time.Millisecond)
	step(yes, true)
	require.Equal(t, map[pagefile.Key]bool{gone.Fingerprint: true, pagefile.ColdFingerprint(gone.Fingerprint): true}, s.local.obsolete(ctx, o.Obsolete))
}

func TestQuarantineGoesBeforePages(t *testing.T) {
	page := physicalPage(t)
	o := testOptions(t)
	s := start(t, o)
	for _, p := range putChain(t, s, prompt(1, 5*testTokens)) {
		moved, err := s.disk.Quarantine(ctx, tier.Info{Name: s.pages.Page(p.Key())}, "test")
		require.NoError(t, err)
		require.True(t, moved)
	}
	kept := prompt(2, 9*testTokens)
	putChain(t, s, kept)
	require.NoError(t, s.Close())

	o.Local.BudgetBytes = 12 * page // for 9 pages, and 5 in quarantine
	require.NoError(t, os.Remove(filepath.Join(o.Local.Root, storetest.VersionDir, storetest.LedgerFile)))
	s = open(t, o)
	readChain(t, s, kept, len(kept))
	require.Zero(t, s.Stats().Evicted)
	require.Empty(t, filesIn(t, filepath.Join(o.Local.Root, storetest.VersionDir, storetest.QuarantineDir), dir.PageExt))
	requireExact(t, s)
}

func TestBudgetSpansFingerprints(t *testing.T) {
	o := testOptions(t, withPages(t, 4))
	other := o
	other.Fingerprint = testFingerprint(9)
	putChain(t, open(t, other), prompt(1, 4*testTokens))
	age(t, o.Local.Root, time.Now().Add(-time.Hour))
	s := open(t, o)
	putChain(t, s, prompt(2, 2*testTokens))
	require.NoError(t, s.Flush(ctx))
	readChain(t, s, prompt(2, 2*testTokens), 2*testTokens)
	require.LessOrEqual(t, s.Stats().Local.Bytes, o.Local.BudgetBytes)
	requireExact(t, s)

	big := pageOf(t, s.opt.Fingerprint, 0, prompt(4, testTokens))
	s.local.book.Budget = 100
	require.ErrorIs(t, s.Put(ctx, big), tier.ErrNoSpace)
}

func TestUnlimitedTierKeepsSomeOfTheDiskFree(t *testing.T) {
	page := physicalPage(t)
	fs := &tinyDisk{FS: quickFS, space: vfs.Space{Total: 100 * page, Free: 50 * page}}
	s := open(t, testOptions(t, withFS(fs)))
	putChain(t, s, prompt(1, 3*testTokens))
	require.NoError(t, s.Flush(ctx))
	require.Zero(t, s.Stats().Evicted)
	fs.space.Free = fs.space.Total/room.ReserveShare - 1 // one byte too little
	putChain(t, s, prompt(2, testTokens))
	require.NoError(t, s.Flush(ctx))
	require.EqualValues(t, 1, s.Stats().Evicted)
	readChain(t, s, prompt(1, 3*testTokens), 2*testTokens)
}

// tinyDisk reports a given amount of space.
type tinyDisk struct {
	vfs.FS
	space vfs.Space
}

func (d *tinyDisk) Space(string) (vfs.Space, error) { return d.space, nil }

// fillingDisk has room for the given bytes below a root, in addition to the share that a tier
// without a budget leaves free.
type fillingDisk struct {
	vfs.FS
	t          *testing.T
	root       string
	room, left int64
}

func (d fillingDisk) Space(name string) (vfs.Space, error) {
	if name != d.root {
		return d.FS.Space(name)
	}
	return vfs.Space{Total: room.ReserveShare * d.left, Free: d.left + d.room - occupied(d.t, d.root)}, nil
}

// listings opens a store and returns a function that puts n pages and returns the number of
// listings of the local tier meanwhile. The tier has about the given number of pages.
func listings(t *testing.T, o Options, pages int) (s *Store, put func(n int) (listed int)) {
	s = open(t, o)
	var files atomic.Int64
	s.local.files.Listed = func() { files.Add(1) }
	seed := 0
	return s, func(n int) int {
		t.Helper()
		before := files.Load()
		for range n {
			require.NoError(t, s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(seed, testTokens))))
			require.NoError(t, s.Flush(ctx))
			seed++
		}
		return int(files.Load()-before) / (pages * 9 / 10)
	}
}

// TestFullDiskIsListedSeldom: a tier without a budget has filled its disk. Its pages are
// deleted, move down, or cannot move while the remote tier is away.
func TestFullDiskIsListedSeldom(t *testing.T) {
	statesOneByOne(t)
	const pages, left, puts = 320, 640, 30
	page := physicalPage(t)
	for name, remote := range map[string]func(s *Store){
		"no remote tier":   nil,
		"a remote tier":    func(*Store) {},
		"one that is away": func(s *Store) { outages["its breaker is open"](s, nil, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t)
			if remote != nil {
				withRemote(t)(&o)
			}
			o.FS = fillingDisk{quickFS, t, o.Local.Root, pages * page, left * page}
			s, put := listings(t, o, pages)
			if remote != nil {
				remote(s)
			}
			require.LessOrEqual(t, put(pages), 1)
			require.LessOrEqual(t, put(puts), puts/(left/room.OutageShare)+2)
			st := s.Stats()
			require.GreaterOrEqual(t, st.Local.Pages, pages-left/room.SlackShare-1)
			require.LessOrEqual(t, st.Local.Pages, pages)
			require.NotZero(t, st.Evicted+st.Demoted)
			if name == "one that is away" {
				require.LessOrEqual(t, st.Evicted, uint64(puts+left/room.OutageShare))
			}
		})
	}
}

// TestYoungPagesAreListedSeldom: a tier is nearly full with pages used within the last minute.
// Once these pages are older, the tier is trimmed.
func TestYoungPagesAreListedSeldom(t *testing.T) {
	const pages = 320
	page := physicalPage(t)
	s, put := listings(t, testOptions(t, func(o *Options) { o.Local.BudgetBytes = pages * page }), pages)
	now := time.Now()
	s.now = func() time.Time { return now }
	put(pages - pages/room.TrimShare - 1)
	require.LessOrEqual(t, put(pages/room.TrimShare-1), 2)
	require.Zero(t, s.Stats().Evicted)
	age(t, s.opt.Local.Root, now.Add(-time.Hour))
	now = now.Add(recency.TouchEvery)
	put(1)
	require.NotZero(t, s.Stats().Evicted)
}

func TestDemotionAndPromotion(t *testing.T) {
	page := physicalPage(t)
	s, o := openNew(t, withRemote(t), func(o *Options) { o.Local.BudgetBytes = 5 * page })
	a, b := prompt(1, 4*testTokens+3), prompt(2, 4*testTokens)
	putChain(t, s, a)
	age(t, o.Local.Root, time.Now().Add(-time.Hour))
	putChain(t, s, b)
	require.NoError(t, s.Flush(ctx))
	st := s.Stats()
	require.LessOrEqual(t, st.Local.Bytes, o.Local.BudgetBytes)
	require.Zero(t, st.Evicted, "nothing is lost")
	require.EqualValues(t, st.Demoted, st.Remote.Pages+st.Remote.Tails)
	require.Equal(t, 9, st.Local.Pages+st.Local.Tails+st.Remote.Pages+st.Remote.Tails)
	_, err := tier.ReadManifest(ctx, s.guard, o.Fingerprint)
	require.NoError(t, err, "the remote tier has the manifest of its pages")

	// The chain is whole across tiers, including the tail, and reading it brings pages back
	// up.
	refs := s.Find(ctx, Prompt{Tokens: a}).Exact
	require.Equal(t, len(a), tokensIn(refs))
	require.Equal(t, tier.Remote, refs[len(refs)-1].Tier)
	s.opt.Local.BudgetBytes, s.local.book.Budget = 100*page, 100*page
	readChain(t, s, a, len(a))
	require.NoError(t, s.Flush(ctx))
	require.Equal(t, st.Demoted, s.Stats().Promoted)
	for _, ref := range s.Find(ctx, Prompt{Tokens: a}).Exact {
		require.Equal(t, tier.Local, ref.Tier)
	}
	requireExact(t, s)

	// Demoting a page that the remote tier still has copies nothing.
	infos := listAll(t, s.local)
	before := s.Stats().Remote
	for _, info := range infos {
		if _, err := tier.Stat(ctx, s.guard, info.Name); err == nil {
			evictPage(t, s, info)
		}
	}
	require.Equal(t, before, s.Stats().Remote)

	// Another process with a local root of its own finds the pages.
	for _, info := range infos {
		if err := s.demote(ctx, info); !errors.Is(err, tier.ErrNotFound) {
			require.NoError(t, err)
		}
	}
	o.Local.Root = filepath.Join(t.TempDir(), "other")
	s2 := open(t, o)
	readChain(t, s2, a, len(a))
	use := scan(t, s2)
	require.Equal(t, s.Stats().Remote.Pages, use.Remote.Pages)
}

func TestFullRemoteMakesRoom(t *testing.T) {
	s, o, inj := openInjected(t, withRemote(t))
	evict := func(seed int) {
		p := putChain(t, s, prompt(seed, testTokens))[0]
		evictPage(t, s, mustStat(t, s.disk, s.pages.Page(p.Key())))
	}
	evict(1)
	age(t, o.Remote.Root, time.Now().Add(-time.Hour))
	remote := regexp.MustCompile("^" + regexp.QuoteMeta(o.Remote.Root))
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpWrite}, Path: remote, Nth: 1, Err: syscall.EDQUOT})
	evict(2)
	require.Equal(t, 1, s.Stats().Remote.Pages)
	require.EqualValues(t, 1, s.Stats().Evicted)
	require.EqualValues(t, 2, s.Stats().Demoted)
	readChain(t, s, prompt(2, testTokens), testTokens)
}

func TestRaceWithDemotionReadsTheOtherTier(t *testing.T) {
	s := open(t, testOptions(t, withRemote(t)))
	tokens := putPrompt(t, s, 1, testTokens)
	refs := s.Find(ctx, Prompt{Tokens: tokens}).Exact
	require.Equal(t, tier.Local, refs[0].Tier)
	evictPage(t, s, mustStat(t, s.disk, refs[0].name(s.pages)))
	readRef(t, s, refs[0], tokens)
}

func TestDamageIsNeitherDemotedNorPromoted(t *testing.T) {
	s, o := openNew(t, withRemote(t))
	tokens := prompt(1, testTokens)
	p := putChain(t, s, tokens)[0]
	name := s.pages.Page(p.Key())
	flip := func(root string) {
		path := filePath(root, name)
		flipAt(t, path, -pagefile.FooterBytes-1)
	}
	info := mustStat(t, s.disk, name)
	require.NoError(t, s.demote(ctx, info))
	flip(o.Remote.Root)
	_, err := s.disk.Remove(ctx, tier.Info{Name: name})
	require.NoError(t, err)
	s.mover.Promote(ctx, s.guard, info, recency.Place{Parent: p.Parent})
	require.False(t, s.Has(p.Key()))
	require.Zero(t, s.Stats().Promoted)
	require.NoFileExists(t, filePath(o.Remote.Root, name))

	require.NoError(t, s.Put(ctx, p))
	flip(o.Local.Root)
	evictPage(t, s, info)
	require.NoFileExists(t, filePath(o.Remote.Root, name))
	require.EqualValues(t, 2, s.Stats().Damaged)
	require.Zero(t, s.Stats().Demoted)
}

// TestDemotionSurvivesAnErrorAtEveryRemoteOperation checks that a page is in one tier, whole,
// or deleted, and that the counted files are the files in the tiers.
func TestDemotionSurvivesAnErrorAtEveryRemoteOperation(t *testing.T) {
	statesOneByOne(t)
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EIO, syscall.EROFS, syscall.ESTALE} {
		s, o, inj := openInjected(t, withRemote(t))
		remote := regexp.MustCompile("^" + regexp.QuoteMeta(o.Remote.Root))
		for nth := 1; ; nth++ {
			tokens := prompt(nth, testTokens)
			p := putChain(t, s, tokens)[0]
			info := mustStat(t, s.disk, s.pages.Page(p.Key()))
			inj.Reset()
			inj.Add(vfs.Rule{Path: remote, Nth: nth, Err: errno})
			_, _ = s.local.room.Evict(ctx, info, true)
			reached := inj.Count()
			inj.Reset()
			s.guard.Breaker.Success()
			readChain(t, s, tokens, tokensIn(s.Find(ctx, Prompt{Tokens: tokens}).Exact))
			requireExact(t, s)
			if nth > reached {
				require.NoError(t, s.demote(ctx, info))
				break
			}
		}
		require.Zero(t, s.Stats().Damaged)
		requireWhole(t, filesIn(t, o.Remote.Root, dir.PageExt)...)
	}
}

// overtaken is a tier of which others take the room that a collection makes.
type overtaken struct {
	tier.Disk
	take func()
}

func (o *overtaken) EmptyQuarantine(ctx context.Context) (int64, error) {
	o.take()
	return o.Disk.EmptyQuarantine(ctx)
}

// TestRoomIsTakenDuringACollection: a collection that made the wanted room has not exhausted its tier,
// though somebody else has the room now.
func TestRoomIsTakenDuringACollection(t *testing.T) {
	page := physicalPage(t)
	s := open(t, testOptions(t, func(o *Options) { o.Local.BudgetBytes = 3 * page }))
	putPages(t, s, 0, 3)
	require.NoError(t, s.Flush(ctx))
	oldest := s.Find(ctx, Prompt{Tokens: prompt(0, testTokens)}).Exact[0]
	began := s.now().Add(-time.Hour)
	old := began.Add(-time.Hour)
	require.NoError(t, os.Chtimes(filePath(s.opt.Local.Root, s.pages.Page(oldest.Key)), old, old))

	var taken sync.Once
	s.local.files.Tier = &overtaken{Disk: s.disk, take: func() {
		taken.Do(func() {
			room, err := s.local.book.Reserve(ctx, page)
			require.NoError(t, err, "the collection has made room")
			t.Cleanup(room.Cancel)
		})
	}}
	want := room.Demand{Room: page, Before: began}
	require.ErrorIs(t, s.local.room.Collect(ctx, want), room.ErrOvertaken)
	err := s.local.room.Collect(ctx, want)
	require.ErrorIs(t, err, room.ErrExhausted)
	require.NotErrorIs(t, err, room.ErrOvertaken, "nothing is old any more")
}
