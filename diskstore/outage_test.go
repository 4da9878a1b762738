package diskstore

import (
	"context"
	"fmt"
	"regexp"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/room"
	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// outages are ways in which a remote tier takes no pages. Each returns a function that ends
// the outage.
var outages = map[string]func(s *Store, inj *vfs.Injector, remote *regexp.Regexp) (end func()){
	"its breaker is open": func(s *Store, _ *vfs.Injector, _ *regexp.Regexp) func() {
		now := time.Now()
		s.guard.Breaker.Now = func() time.Time { return now }
		below := s.guard.Inner
		s.guard.Inner = goneTier{below}
		_, _ = tier.Stat(ctx, s.guard, pagefile.Name{})
		s.guard.Inner = below
		return func() { now = now.Add(time.Hour) } // the breaker allows operations again
	},
	"every operation fails": func(s *Store, inj *vfs.Injector, remote *regexp.Regexp) func() {
		inj.Add(vfs.Rule{Path: remote, Err: syscall.EIO})
		return func() { inj.Reset(); s.guard.Breaker.Success() }
	},
	"its root is gone": func(s *Store, inj *vfs.Injector, remote *regexp.Regexp) func() {
		inj.Add(vfs.Rule{Path: remote, Err: syscall.ENOENT})
		return func() { inj.Reset(); s.guard.Breaker.Success() }
	},
	"it cannot be written": func(s *Store, inj *vfs.Injector, remote *regexp.Regexp) func() {
		inj.Add(vfs.Rule{Path: remote, Ops: []vfs.Op{vfs.OpCreate, vfs.OpMkdir, vfs.OpLock, vfs.OpRename}, Err: syscall.EROFS})
		return inj.Reset
	},
	"it fails when room is made": func(s *Store, inj *vfs.Injector, remote *regexp.Regexp) func() {
		inj.Add(vfs.Rule{Path: remote, Ops: []vfs.Op{vfs.OpWrite}, Err: syscall.ENOSPC})
		inj.Add(vfs.Rule{Path: remote, Ops: []vfs.Op{vfs.OpReadDir}, Err: syscall.EIO})
		return func() { inj.Reset(); s.guard.Breaker.Success() }
	},
}

// goneTier is a tier whose root is gone.
type goneTier struct{ tier.Tier }

func (goneTier) Find(_ context.Context, names []pagefile.Name, _ bool) ([]tier.Info, error) {
	return make([]tier.Info, len(names)), tier.ErrRootMissing
}

// TestOutageOfTheRemoteDeletesNothingThatFits: pages that should move down to a remote tier
// that is away stay while the local tier has room for them. Pages without room are deleted,
// and one batch in addition at most; after the outage the other pages move down.
func TestOutageOfTheRemoteDeletesNothingThatFits(t *testing.T) {
	for name, begin := range outages {
		t.Run(name, func(t *testing.T) {
			s, o, inj := openInjected(t, withRemote(t), withPages(t, 100))
			putSettled(t, s, 0, 96)
			age(t, o.Local.Root, time.Now().Add(-time.Hour))
			end := begin(s, inj, regexp.MustCompile("^"+regexp.QuoteMeta(o.Remote.Root)))
			putSettled(t, s, 96, 99) // nearly full: pages begin to move down
			st := s.Stats()
			require.Zero(t, st.Evicted)
			require.Equal(t, 99, st.Local.Pages)
			putSettled(t, s, 99, 120)
			st = s.Stats()
			require.EqualValues(t, 120-st.Local.Pages, st.Evicted)
			require.GreaterOrEqual(t, st.Local.Pages, 100-(1+100/room.OutageShare), "only pages without room, and a batch, are deleted")
			require.LessOrEqual(t, occupied(t, o.Local.Root), o.Local.BudgetBytes)
			lost := st.Evicted

			end()
			putSettled(t, s, 120, 125)
			st = s.Stats()
			require.Equal(t, lost, st.Evicted)
			require.NotZero(t, st.Demoted)
			require.EqualValues(t, 125-lost, uint64(st.Local.Pages)+st.Demoted)
		})
	}
}

// notSharedTier is a tier to which another machine writes, as locks show.
type notSharedTier struct{ tier.Disk }

func (notSharedTier) Account(context.Context, func([]byte, string) ([]byte, error)) ([]byte, error) {
	return nil, tier.ErrNotShared
}

func (notSharedTier) Lock(context.Context) (func(), error) {
	return nil, fmt.Errorf("%w (%w)", tier.ErrNotShared, tier.ErrLocked)
}

func (notSharedTier) Create(context.Context, pagefile.Name) (tier.Upload, error) {
	return nil, tier.ErrNotShared
}

// TestOutageOfTheRemoteListsTheLocalTierSeldom: a tier that is full, or nearly full, and whose
// pages cannot move down is not listed for every Put.
func TestOutageOfTheRemoteListsTheLocalTierSeldom(t *testing.T) {
	statesOneByOne(t)
	const pages, puts = 640, 30
	page := physicalPage(t)
	for name, begin := range map[string]func(s *Store, inj *vfs.Injector, remote *regexp.Regexp) (end func()){
		"its breaker is open":  outages["its breaker is open"],
		"it cannot be written": outages["it cannot be written"],
		"another machine writes to it": func(s *Store, _ *vfs.Injector, _ *regexp.Regexp) func() {
			s.guard.Inner = notSharedTier{tier.OnDisk(s.guard.Inner)}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			o, inj := injected(t, withRemote(t), func(o *Options) { o.Local.BudgetBytes = pages * page })
			s, put := listings(t, o, pages)
			put(pages - pages/room.TrimShare - 1)
			age(t, o.Local.Root, time.Now().Add(-time.Hour))
			begin(s, inj, regexp.MustCompile("^"+regexp.QuoteMeta(o.Remote.Root)))

			require.LessOrEqual(t, put(pages/room.TrimShare-1), 3, "the tier is nearly full, and no page may be deleted")
			require.Zero(t, s.Stats().Evicted)
			put(2) // the first page that does not fit, at the latest
			require.LessOrEqual(t, put(puts), puts/(pages/room.OutageShare)+3, "full")
			require.LessOrEqual(t, s.Stats().Evicted, s.Stats().Puts-pages+pages/room.OutageShare+1)
			require.Zero(t, s.Stats().PutErrors)
		})
	}
}

// lockCounter counts requests for the lock for collecting.
type lockCounter struct {
	tier.Disk
	asked atomic.Int32
}

func (c *lockCounter) Lock(ctx context.Context) (func(), error) {
	c.asked.Add(1)
	return c.Disk.Lock(ctx)
}

// crampedFS reports little space for a root.
type crampedFS struct {
	vfs.FS
	root string
}

func (f crampedFS) Space(name string) (vfs.Space, error) {
	if name == f.root {
		return vfs.Space{Total: 1 << 40, Free: 1 << 30}, nil
	}
	return f.FS.Space(name)
}

// TestNobodyWaitsForTheLockOfAnotherMachinesTier: another machine writes to the remote tier,
// locks do not reach both machines, and the tier is nearly full. A Put that needs room in the
// local tier waits for the collection, which must not wait for the remote tier's lock.
func TestNobodyWaitsForTheLockOfAnotherMachinesTier(t *testing.T) {
	sh := storetest.NewShare(0)
	o := testOptions(t, withFS(sh.From("a")), withRemote(t))
	inRemote(t, open(t, o), 2)
	ob := testOptions(t, withRemote(t))
	ob.Remote = o.Remote
	ob.FS = crampedFS{sh.From("b"), o.Remote.Root}
	b := open(t, ob)
	locks := &lockCounter{Disk: tier.OnDisk(b.guard.Inner)}
	b.guard.Inner = locks
	require.NoError(t, b.remote.room.Collect(ctx, room.Demand{}))
	require.EqualValues(t, 1, locks.asked.Load())
}

// TestRemoteCountHoldsUpNoPut: a count of the remote tier takes long, as over a network. Pages
// continue to move down to make room in the local tier.
func TestRemoteCountHoldsUpNoPut(t *testing.T) {
	page := physicalPage(t)
	s, o, inj := openInjected(t, withRemote(t), func(o *Options) { o.Local.BudgetBytes, o.Remote.BudgetBytes = 32*page, 1000*page })
	putPages(t, s, 0, 40)
	require.NoError(t, s.Flush(ctx))
	gate := hold(inj, vfs.Rule{Ops: []vfs.Op{vfs.OpReadDir}, Path: regexp.MustCompile("^" + regexp.QuoteMeta(o.Remote.Root) + `/v1$`)})
	s.remote.files.Backdate(time.Hour, 0) // a count is due
	putPages(t, s, 100, 140)
	<-gate.Entered()
	putPages(t, s, 200, 240)
	gate.Open()
	require.NoError(t, s.Flush(ctx))
	require.Zero(t, s.Stats().PutErrors)
}

// countedShare returns the stores of two machines with one remote tier, on a server whose clock is
// ahead. Both have counted the tier, and b may not write to it.
func countedShare(t *testing.T, ahead time.Duration) (a, b *Store) {
	sh := storetest.NewShare(ahead)
	oa := testOptions(t, withFS(sh.From("a")), withRemote(t), func(o *Options) { o.Remote.BudgetBytes = 1 << 30 })
	a = open(t, oa)
	inRemote(t, a, 3)
	require.NoError(t, a.Flush(ctx))
	ob := testOptions(t, withFS(sh.From("b")))
	ob.Remote = oa.Remote
	b = open(t, ob)
	count(t, b.remote)
	return a, b
}

// TestOneHostCountsTheShareForAll: a count that another machine has recorded serves this one,
// whichever clocks the machines have.
func TestOneHostCountsTheShareForAll(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour} {
		a, b := countedShare(t, ahead)
		b.remote.files.Backdate(2*room.FarCountEvery, 0)
		require.NoError(t, b.remote.book.Refresh(ctx))
		require.True(t, b.remote.room.Stale(), "nobody has counted since")
		count(t, a.remote)
		require.NoError(t, b.remote.book.Refresh(ctx))
		require.False(t, b.remote.room.Stale())
	}
}

// TestReaderOfACountedTierCountsSeldom: a machine that may not write to the remote tier finds
// in the ledger that another machine has counted the tier.
func TestReaderOfACountedTierCountsSeldom(t *testing.T) {
	a, b := countedShare(t, 0)
	require.ErrorIs(t, b.remote.book.Record(ctx), tier.ErrNotShared)
	figure, known := b.remote.book.Figure()
	require.True(t, known)
	require.Equal(t, recorded(t, a.opt.Remote.Root), figure)
	b.remote.files.Backdate(room.FarCountEvery/2, 0)
	require.False(t, b.remote.room.Stale())
}
