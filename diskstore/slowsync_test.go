package diskstore

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// slowSyncs are the syncs of a page: its content, its name, and the directory of its name.
var slowSyncs = []struct {
	name string
	op   vfs.Op
	path string // regular expression below <root>/v1
	seen bool   // the page is visible while the sync goes on
}{
	{"content", vfs.OpSync, filepath.Join(storetest.TmpDir, `[^/]*-[0-9]+\.tmp$`), false},
	{"name", vfs.OpSyncDir, "[0-9a-f]{64}/[0-9a-f]{2}$", true},
	{"directory", vfs.OpSyncDir, "[0-9a-f]{64}$", true},
}

// syncHangs makes the next sync of a kind wait at the gate.
func syncHangs(t *testing.T, inj *vfs.Injector, root string, op vfs.Op, path string) *vfs.Gate {
	gate := vfs.NewGate()
	t.Cleanup(gate.Open)
	below := "^" + regexp.QuoteMeta(filepath.Join(root, storetest.VersionDir)) + "/"
	inj.Add(vfs.Rule{Ops: []vfs.Op{op}, Path: regexp.MustCompile(below + path), Nth: 1, Gate: gate})
	return gate
}

// soon requires op to end while a sync hangs.
func soon(t *testing.T, what string, op func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- op() }()
	select {
	case err := <-done:
		require.NoError(t, err, what)
	case <-time.After(10 * time.Second):
		t.Fatalf("%s waits for another page's sync", what)
	}
}

// TestASyncThatHangsStallsNothingElse: while a Put waits for its disk, files are counted, other
// pages are stored and evicted, and the numbers are exact before and after.
func TestASyncThatHangsStallsNothingElse(t *testing.T) {
	for _, hang := range slowSyncs {
		t.Run(hang.name, func(t *testing.T) {
			s, _, inj := openInjected(t)
			old := putChain(t, s, prompt(1, testTokens))[0]
			gate := syncHangs(t, inj, s.opt.Local.Root, hang.op, hang.path)
			put := make(chan error, 1)
			slow := pageOf(t, s.opt.Fingerprint, 0, prompt(2, testTokens))
			go func() { put <- s.Put(ctx, slow) }()
			<-gate.Entered()

			count := func() error { _, err := s.local.files.Count(ctx, nil); return err }
			soon(t, "a count", count)
			require.Equal(t, hang.seen, s.Has(slow.Key()))
			require.Equal(t, len(listAll(t, s.local)), s.Stats().Local.Pages)
			soon(t, "a Put", func() error { return s.Put(ctx, pageOf(t, s.opt.Fingerprint, 0, prompt(3, testTokens))) })
			soon(t, "a Put of a tail", func() error { return s.Put(ctx, pageOf(t, s.opt.Fingerprint, 0, prompt(4, 3))) })
			info := mustStat(t, s.disk, s.pages.Page(old.Key()))
			soon(t, "an eviction", func() error { _, err := s.local.room.Evict(ctx, info, true); return err })
			soon(t, "a second count", count)
			require.Equal(t, len(listAll(t, s.local)), s.Stats().Local.Pages+s.Stats().Local.Tails)

			select {
			case err := <-put:
				t.Fatalf("Put returned before its page was durable: %v", err)
			default:
			}
			gate.Open()
			require.NoError(t, <-put)
			require.NoError(t, s.Flush(ctx))
			readChain(t, s, slow.Tokens, testTokens)
			requireExact(t, s)
		})
	}
}

// TestPutWaitsForRoomThatIsBeingWritten: a budget has room for three pages, two of them of one
// chain and the third not written yet. The chain's third page waits until the other one is
// there, and replaces it.
func TestPutWaitsForRoomThatIsBeingWritten(t *testing.T) {
	s, _, inj := openInjected(t, withPages(t, 3))
	pages := chainOf(t, s, prompt(1, 3*testTokens))
	for _, p := range pages[:2] {
		require.NoError(t, s.Put(ctx, p))
	}
	gate := syncHangs(t, inj, s.opt.Local.Root, vfs.OpSync, slowSyncs[0].path)
	other := pageOf(t, s.opt.Fingerprint, 0, prompt(2, testTokens))
	put := make(chan error, 2)
	go func() { put <- s.Put(ctx, other) }()
	<-gate.Entered()
	counted, _ := s.local.files.Counted()
	go func() { put <- s.Put(ctx, pages[2]) }()
	for now := counted; now.Equal(counted); now, _ = s.local.files.Counted() { // until the Put's collection has listed the files
		runtime.Gosched()
	}
	require.NoError(t, s.local.collecting.Wait(ctx))
	gate.Open()
	require.NoError(t, <-put)
	require.NoError(t, <-put)
	require.NoError(t, s.Flush(ctx))
	require.True(t, s.Has(pages[2].Key()))
	require.False(t, s.Has(other.Key()))
}

// TestAMoveToQuarantineThatHangsStallsNothingElse: as above, for a damaged page.
func TestAMoveToQuarantineThatHangsStallsNothingElse(t *testing.T) {
	s, _, inj := openInjected(t)
	bad := putChain(t, s, prompt(1, testTokens))[0]
	flipAt(t, filePath(s.opt.Local.Root, s.pages.Page(bad.Key())), -100)
	gate := syncHangs(t, inj, s.opt.Local.Root, vfs.OpSyncDir, storetest.QuarantineDir+"$")
	read := make(chan error, 1)
	refs := s.Find(ctx, Prompt{Tokens: bad.Tokens}).Exact
	go func() {
		read <- s.Read(ctx, refs[0], bad.Tokens, bad.Layout, Into{Rows: make([]byte, bad.Layout.Size())})
	}()
	<-gate.Entered()
	soon(t, "a count", func() error { _, err := s.local.files.Count(ctx, nil); return err })
	soon(t, "a Put", func() error { return s.Put(ctx, bad) })
	require.Equal(t, 1, s.Stats().Local.Pages)
	gate.Open()
	require.ErrorIs(t, <-read, pagefile.ErrDamaged)
	requireExact(t, s)
}

// TestASyncOfTheShareThatHangsStallsNothingElse: while a page on its way to the remote tier waits
// for a sync there, that tier is counted, and other pages move down and are deleted.
func TestASyncOfTheShareThatHangsStallsNothingElse(t *testing.T) {
	for _, hang := range slowSyncs {
		t.Run(hang.name, func(t *testing.T) {
			s, _, inj := openInjected(t, withRemote(t))
			var infos []tier.Info
			for seed := range 3 {
				p := putChain(t, s, prompt(1+seed, testTokens))[0]
				info := mustStat(t, s.disk, s.pages.Page(p.Key()))
				infos = append(infos, info)
			}
			require.NoError(t, s.demote(ctx, infos[0]))
			gate := syncHangs(t, inj, s.opt.Remote.Root, hang.op, hang.path)
			moved := make(chan error, 1)
			go func() { moved <- s.demote(ctx, infos[1]) }()
			<-gate.Entered()

			soon(t, "a count", func() error { _, err := s.remote.files.Count(ctx, nil); return err })
			soon(t, "a move down", func() error { return s.demote(ctx, infos[2]) })
			below := mustStat(t, s.guard, infos[0].Name)
			soon(t, "an eviction", func() error { _, err := s.remote.room.Evict(ctx, below, true); return err })
			require.Equal(t, len(listAll(t, s.remote)), s.Stats().Remote.Pages)

			gate.Open()
			require.NoError(t, <-moved)
			require.NoError(t, s.Flush(ctx))
			require.Equal(t, len(listAll(t, s.remote)), s.Stats().Remote.Pages)
		})
	}
}

// TestAReplacedFileCountsUntilItIsGone: files are counted while a smaller file that has replaced
// another is not durable yet. A power cut brings the larger file back, within the ledger's figure.
func TestAReplacedFileCountsUntilItIsGone(t *testing.T) {
	w := newCrashWorld(t, func(o *Options) { o.Local.BudgetBytes = 1 << 20 })
	w.open()
	defer func() { w.close() }()
	large := []pagefile.Section{{Kind: pagefile.KindK, RowBytes: 16 << 10}}
	tokens := prompt(1, testTokens)
	w.put(large, tokens)
	w.flush()
	gate := syncHangs(t, w.inj, w.o.Local.Root, vfs.OpSyncDir, slowSyncs[1].path)
	put := make(chan error, 1)
	go func() { put <- w.s.Put(ctx, tinyPages(t, w.o, tinySections, tokens)[0]) }()
	<-gate.Entered()
	count(t, w.s.local)
	after := w.mem.Crash(0, 1)
	found, err := walk(after, w.o.Local.Root)
	require.NoError(t, err)
	require.Greater(t, found.bytes, int64(tinyPage), "the larger file is back")
	require.NoError(t, checkLedger(after, w.o.Local.Root))

	gate.Open()
	require.NoError(t, <-put)
	counted := count(t, w.s.local)
	require.Zero(t, counted.Fleeting)
}

// TestARemovedFileCountsUntilItIsGone: files are counted while a tail that another one extends is
// removed, not yet durably. A power cut brings it back, within the ledger's figure.
func TestARemovedFileCountsUntilItIsGone(t *testing.T) {
	w := newCrashWorld(t, func(o *Options) { o.Local.BudgetBytes = 1 << 20 })
	w.open()
	defer func() { w.close() }()
	tokens := prompt(1, testTokens-1)
	w.put(tinySections, tokens[:2])
	w.flush()
	shorter := filePath(w.o.Local.Root, placeOf(w.o, tinyPages(t, w.o, tinySections, tokens[:2])[0]))
	gate := vfs.NewGate()
	t.Cleanup(gate.Open)
	w.inj.Add(vfs.Rule{Path: regexp.MustCompile("^" + regexp.QuoteMeta(filepath.Dir(shorter)) + "$"), Ops: []vfs.Op{vfs.OpSyncDir}, Gate: gate})
	put := make(chan error, 1)
	go func() { put <- w.s.Put(ctx, tinyPages(t, w.o, tinySections, tokens)[0]) }()
	<-gate.Entered()
	count(t, w.s.local)
	_, err := w.mem.Lstat(shorter)
	require.ErrorIs(t, err, fs.ErrNotExist)
	after := w.mem.Crash(0, 1)
	_, err = after.Lstat(shorter)
	require.NoError(t, err, "the shorter tail is back")
	require.NoError(t, checkLedger(after, w.o.Local.Root))

	gate.Open()
	require.NoError(t, <-put)
	w.flush()
	counted := count(t, w.s.local)
	require.Zero(t, counted.Fleeting)
}

// listingHangs makes the listing of the remote tier's pages hang until the test ends.
func listingHangs(t *testing.T, inj *vfs.Injector, root string) *vfs.Gate {
	gate := vfs.NewGate()
	t.Cleanup(gate.Open)
	shard := filepath.Join(regexp.QuoteMeta(root), storetest.VersionDir, "[0-9a-f]{64}", "[0-9a-f]{2}$")
	inj.Add(vfs.Rule{Path: regexp.MustCompile("^" + shard), Ops: []vfs.Op{vfs.OpReadDir}, Gate: gate})
	return gate
}

// TestPutsGoOnWhileTheShareIsListed: a count of the remote tier takes long, or hangs. Pages move
// down meanwhile, and those are deleted for which the remote tier would have to make room.
func TestPutsGoOnWhileTheShareIsListed(t *testing.T) {
	const here, below = 20, 10
	page := physicalPage(t)
	for name, budget := range map[string]int64{"room below": 0, "no room below": below * page} {
		t.Run(name, func(t *testing.T) {
			o, inj := injected(t, withRemote(t), func(o *Options) {
				o.Local.BudgetBytes, o.Remote.BudgetBytes = here*page, budget
			})
			s := open(t, o)
			inRemote(t, s, below)
			require.NoError(t, s.Flush(ctx))
			setRemoteTimeout(s, time.Millisecond) // a move down waits as long for room
			gate := listingHangs(t, inj, o.Remote.Root)
			counted := make(chan error, 1)
			go func() {
				_, err := s.remote.files.Count(ctx, nil)
				counted <- err
			}()
			<-gate.Entered()
			demoted := s.Stats().Demoted
			putPages(t, s, 100, 100+2*here)
			if budget == 0 {
				require.Greater(t, s.Stats().Demoted, demoted)
			}
			gate.Open()
			require.NoError(t, <-counted)
			require.NoError(t, s.Flush(ctx))
			require.Equal(t, len(listAll(t, s.remote)), s.Stats().Remote.Pages)
		})
	}
}

// TestCountListsAChangedShardAgain: while a shard of the remote tier is listed, a page moves to
// it, or one is removed. The count is exact.
func TestCountListsAChangedShardAgain(t *testing.T) {
	for _, adds := range []bool{true, false} {
		t.Run(fmt.Sprint(adds), func(t *testing.T) {
			s, _, inj := openInjected(t, withRemote(t))
			pair := neighbours(t, s.opt.Fingerprint)
			for _, p := range pair {
				require.NoError(t, s.Put(ctx, p))
			}
			demote := func(p *pagefile.Page) {
				info := mustStat(t, s.disk, s.pages.Page(p.Key()))
				require.NoError(t, s.demote(ctx, info))
			}
			demote(pair[0])
			listed := filePath(s.opt.Remote.Root, s.pages.Page(pair[0].Key()))
			changed := false
			inj.Watch(func(op vfs.Op, paths ...string) {
				if op != vfs.OpLstat || paths[0] != listed || changed {
					return
				}
				changed = true // between the names and the files
				if adds {
					demote(pair[1])
					return
				}
				dropPage(t, s.remote, mustStat(t, s.guard, s.pages.Page(pair[0].Key())))
			})
			count(t, s.remote)
			require.True(t, changed)
			require.Equal(t, len(listAll(t, s.remote)), s.Stats().Remote.Pages)
		})
	}
}

// neighbours returns two pages in one directory.
func neighbours(t *testing.T, fingerprint pagefile.Key) []*pagefile.Page {
	byDir := make(map[byte]*pagefile.Page)
	for seed := 0; ; seed++ {
		p := pageOf(t, fingerprint, 0, prompt(seed, testTokens))
		if first := byDir[p.Key()[0]]; first != nil {
			return []*pagefile.Page{first, p}
		}
		byDir[p.Key()[0]] = p
	}
}

// pageSyncs counts the syncs of the files and of the directories of pages, and no syncs of a
// ledger.
type pageSyncs struct {
	mu          sync.Mutex
	files, dirs int
}

var (
	pageTemp = regexp.MustCompile(`-\d+\.tmp$`)
	pageDir  = regexp.MustCompile("/v1/[0-9a-f]{64}")
)

func (p *pageSyncs) watch(op vfs.Op, paths ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case op == vfs.OpSync && pageTemp.MatchString(paths[0]):
		p.files++
	case op == vfs.OpSyncDir && pageDir.MatchString(paths[0]):
		p.dirs++
	}
}

// of runs op and returns the syncs of files and of directories meanwhile.
func (p *pageSyncs) of(op func()) [2]int {
	p.mu.Lock()
	p.files, p.dirs = 0, 0
	p.mu.Unlock()
	op()
	p.mu.Lock()
	defer p.mu.Unlock()
	return [2]int{p.files, p.dirs}
}

// TestSyncsOfAPage: a page costs the sync of its content and of its directory, in both tiers.
func TestSyncsOfAPage(t *testing.T) {
	w := newCrashWorld(t, func(o *Options) { o.Local.BudgetBytes, o.Remote.BudgetBytes = 0, 0 })
	syncs := new(pageSyncs)
	w.open()
	w.inj.Watch(syncs.watch)
	pair := neighbours(t, w.o.Fingerprint)
	require.NoError(t, w.putPage(pair[0]))
	require.Equal(t, [2]int{1, 1}, syncs.of(func() { require.NoError(t, w.putPage(pair[1])) }))
	require.Equal(t, [2]int{0, 1}, syncs.of(func() { require.NoError(t, w.putPage(pair[1])) }), "stored already")
	tail := prompt(1, 2)
	w.put(tinySections, tail)
	// The directories of the tail, of its branch, and two for each that is new or may be.
	require.Equal(t, [2]int{1, 5}, syncs.of(func() { w.put(otherSections, append(tail[:1:1], 9)) }))

	var infos []tier.Info
	for _, p := range pair {
		infos = append(infos, mustStat(t, w.s.disk, placeOf(w.o, p)))
	}
	require.NoError(t, w.s.demote(ctx, infos[0]))
	require.Equal(t, [2]int{1, 1}, syncs.of(func() { require.NoError(t, w.s.demote(ctx, infos[1])) }))
	require.Equal(t, [2]int{0, 1}, syncs.of(func() { require.NoError(t, w.s.demote(ctx, infos[1])) }), "held below")
	w.close()
}
