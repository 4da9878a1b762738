package diskstore

import (
	"maps"
	"os"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/move"
	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestFullShareKeepsItsPages: the remote filesystem takes no pages, and deleting pages frees
// nothing, as where snapshots hold the space or other data uses up a quota. Its pages stay,
// except those deleted for the first page, and new pages move there as soon as there is space.
func TestFullShareKeepsItsPages(t *testing.T) {
	const there, here = 4 * move.Batch, 64
	for _, errno := range []syscall.Errno{syscall.EDQUOT, syscall.ENOSPC} {
		t.Run(errno.Error(), func(t *testing.T) {
			s, o, inj := openInjected(t, withRemote(t), withPages(t, here))
			inRemote(t, s, there)
			age(t, o.Remote.Root, time.Now().Add(-time.Hour))
			inj.Add(vfs.Rule{
				Path: regexp.MustCompile("^" + regexp.QuoteMeta(o.Remote.Root)), Ops: []vfs.Op{vfs.OpWrite}, Err: errno,
			})
			putSettled(t, s, 100, 100+here+here/4)
			left := len(listAll(t, s.remote))
			require.GreaterOrEqual(t, left, there-move.Batch)
			require.GreaterOrEqual(t, s.Stats().Local.Pages, here-(1+here/room.OutageShare), "pages that fit stay, as in any outage")

			inj.Reset()
			putSettled(t, s, 300, 300+here/4)
			require.Greater(t, len(listAll(t, s.remote)), left)
		})
	}
}

// TestFullDiskKeepsItsPages does as TestFullShareKeepsItsPages for the local filesystem.
func TestFullDiskKeepsItsPages(t *testing.T) {
	s, o, inj := openInjected(t)
	putPages(t, s, 0, 20)
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

// times returns the recency of each page below a root.
func times(t *testing.T, root string) map[string]time.Time {
	at := make(map[string]time.Time)
	for _, path := range filesIn(t, root, dir.PageExt) {
		info, err := os.Stat(path)
		require.NoError(t, err)
		at[path] = info.ModTime()
	}
	return at
}

// PutIfRoom evicts no page, neither at once nor in a later trim, and makes no page more
// recent.
func TestPutIfRoomTakesNoPlace(t *testing.T) {
	s, o := openNew(t, withPages(t, 8))
	old, other := prompt(1, 4*testTokens), prompt(2, 3*testTokens)
	pages := chainOf(t, s, old)
	for _, p := range pages[:3] {
		require.NoError(t, s.PutIfRoom(ctx, p))
	}
	putChain(t, s, other)
	age(t, o.Local.Root, time.Now().Add(-3*time.Hour))
	s.chains.Forget()
	putChain(t, s, prompt(3, testTokens))
	require.NoError(t, s.Flush(ctx))

	before, stats := times(t, o.Local.Root), s.Stats()
	require.Len(t, before, 7)
	require.NoError(t, s.PutIfRoom(ctx, pages[0]), "is stored")
	require.ErrorIs(t, s.PutIfRoom(ctx, pages[3]), tier.ErrNoSpace, "would be trimmed for")
	require.ErrorIs(t, s.PutIfRoom(ctx, chainOf(t, s, prompt(4, 2*testTokens))[1]), tier.ErrNoSpace, "leads nowhere")
	require.NoError(t, s.Flush(ctx))
	require.Equal(t, before, times(t, o.Local.Root))
	require.Equal(t, stats.Evicted, s.Stats().Evicted)
	requireExact(t, s)
}

// A page stored later is as recent as the chain that it continues.
func TestPutIfRoomIsAsRecentAsItsChain(t *testing.T) {
	for name, budget := range map[string]int64{"budget": 1 << 30, "no budget": 0} {
		t.Run(name, func(t *testing.T) {
			s, o := openNew(t, func(o *Options) { o.Local.BudgetBytes = budget })
			pages := chainOf(t, s, prompt(1, 2*testTokens))
			require.NoError(t, s.Put(ctx, pages[0]))
			past := time.Now().Add(-3 * time.Hour).Truncate(time.Second)
			age(t, o.Local.Root, past)
			s.chains.Forget()
			before := times(t, o.Local.Root)
			require.NoError(t, s.PutIfRoom(ctx, pages[1]))
			after := times(t, o.Local.Root)
			require.Len(t, after, 2)
			for path, at := range after {
				if _, ok := before[path]; !ok {
					require.WithinDuration(t, past, at, time.Minute)
				}
			}
			maps.DeleteFunc(after, func(path string, _ time.Time) bool { return before[path].IsZero() })
			require.Equal(t, before, after)
		})
	}
}

// whileDemoting demotes a page of the local tier, which must be evicted, and calls do while
// its copy is written. The write of the copy then returns the error fails.
func whileDemoting(t *testing.T, s *Store, inj *vfs.Injector, info tier.Info, fails error, do func()) {
	require.NoError(t, s.manifests.below(ctx, s.disk, s.guard, info.Fingerprint, false)) // the manifest's write comes before
	gate := vfs.NewGate()
	inj.Add(vfs.Rule{
		Ops:  []vfs.Op{vfs.OpWrite},
		Path: regexp.MustCompile("^" + regexp.QuoteMeta(s.opt.Remote.Root) + `.*-\d+\.tmp$`),
		Nth:  1, Gate: gate, Err: fails,
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.local.room.EvictAll(ctx, []tier.Info{info}, 1, 1)
	}()
	<-gate.Entered()
	do()
	gate.Open()
	<-done
	inj.Reset()
}

// TestVictimThatCameIntoUseStays: a page takes long to move down, and the move fails.
// Meanwhile its conversation has continued, and the new pages need the page.
func TestVictimThatCameIntoUseStays(t *testing.T) {
	s, o, inj := openInjected(t, withRemote(t))
	tokens := prompt(1, 3*testTokens)
	first := putChain(t, s, tokens[:testTokens])[0]
	require.NoError(t, s.Flush(ctx))
	age(t, o.Local.Root, time.Now().Add(-3*time.Hour))
	s.chains.Forget()
	whileDemoting(t, s, inj, listAll(t, s.local)[0], syscall.EIO, func() {
		second := pageOf(t, first.Key(), testTokens, tokens[testTokens:2*testTokens])
		require.NoError(t, s.Put(ctx, second))
		require.NoError(t, s.Put(ctx, pageOf(t, second.Key(), 2*testTokens, tokens[2*testTokens:])))
	})
	require.Equal(t, len(tokens), tokensIn(s.Find(ctx, Prompt{Tokens: tokens}).Exact))

	// A page that was not used meanwhile is removed.
	unused := listAll(t, s.local)[0]
	whileDemoting(t, s, inj, unused, syscall.EIO, func() {})
	requireNone(t, s.disk, unused.Name)
}

// TestVictimThatWasReplacedStays: while a page moves down it is put once more, with more
// sections. The copy below does not have these sections.
func TestVictimThatWasReplacedStays(t *testing.T) {
	s, _, inj := openInjected(t, withRemote(t))
	tokens := prompt(1, testTokens)
	some := layoutOf(t, testSections[:3], testTokens)
	require.NoError(t, s.Put(ctx, &pagefile.Page{Parent: s.opt.Fingerprint, Tokens: tokens, Layout: some, Payload: make([]byte, some.Size())}))
	whileDemoting(t, s, inj, listAll(t, s.local)[0], nil, func() { putChain(t, s, tokens) })
	require.Len(t, listAll(t, s.remote), 1)
	require.Len(t, listAll(t, s.local), 1)
	readChain(t, s, tokens, testTokens)
}

// troubleLog keeps the errors that Options.Trouble is told.
type troubleLog struct {
	mu  sync.Mutex
	all []error
}

func (t *troubleLog) note(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, err)
}

func (t *troubleLog) last() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.all) == 0 {
		return nil
	}
	return t.all[len(t.all)-1]
}

// fewInodes is a filesystem with room for a number of files below a directory.
type fewInodes struct {
	vfs.FS
	mu    sync.Mutex
	files map[string]bool
	most  int
}

func (f *fewInodes) Create(name string) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.files) >= f.most {
		return nil, &os.PathError{Op: "create", Path: name, Err: syscall.ENOSPC}
	}
	file, err := f.FS.Create(name)
	if err == nil {
		f.files[name] = true
	}
	return file, err
}

func (f *fewInodes) Remove(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.FS.Remove(name)
	if err == nil {
		delete(f.files, name)
	}
	return err
}

func (f *fewInodes) Rename(from, to string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.FS.Rename(from, to)
	if err == nil && f.files[from] {
		delete(f.files, from)
		f.files[to] = true
	}
	return err
}

// TestFewInodes: a filesystem without inodes takes a new page when an old one leaves. The new page
// is stored, since old ones would stay for ever otherwise, and somebody is told: pages leave far
// below the budget.
func TestFewInodes(t *testing.T) {
	const pages = 60
	var told troubleLog
	o := testOptions(t, func(o *Options) {
		o.FS = &fewInodes{FS: quickFS, files: make(map[string]bool), most: 40}
		o.Local.BudgetBytes, o.Trouble = 10*pages*physicalPage(t), told.note
	})
	s := open(t, o)
	now := time.Now()
	s.now = func() time.Time { return now }
	for seed := range pages {
		now = now.Add(time.Second)
		require.NoError(t, s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(seed, testTokens))))
	}
	readChain(t, s, prompt(pages-1, testTokens), testTokens)
	require.NotZero(t, s.Stats().LocalEvicted)
	require.ErrorIs(t, told.last(), ErrNoInodes)
	require.Regexp(t, `\d+ MB are free$`, told.last().Error())

	now = now.Add(2 * crowdedLasts)
	for _, err := range told.all[:5] {
		require.NoError(t, err, "there were inodes")
	}
	s.opt.FS.(*fewInodes).most = 400
	require.NoError(t, s.Put(ctx, pageOf(t, o.Fingerprint, 0, prompt(pages, testTokens))))
	require.NoError(t, told.last(), "there are inodes again")
}
