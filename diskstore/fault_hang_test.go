package diskstore

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestRemoteThatHangsInEveryOperation makes one kind of operation of the remote tier hang for
// good, while every function of the store is used.
func TestRemoteThatHangsInEveryOperation(t *testing.T) {
	page := physicalFaultPage(t)
	ops := []vfs.Op{
		vfs.OpCreate, vfs.OpOpen, vfs.OpMkdir, vfs.OpReadDir, vfs.OpRename, vfs.OpRemove, vfs.OpLstat, vfs.OpChtimes,
		vfs.OpSyncDir, vfs.OpLock, vfs.OpRead, vfs.OpWrite, vfs.OpSync, vfs.OpClose, vfs.OpStat,
	}
	for _, op := range ops {
		t.Run(string(op), func(t *testing.T) {
			life := newFaultLife(t, page)
			s := life.open()
			a, b := prompt(1, 2*testTokens+5), prompt(2, 2*testTokens+5)
			require.NoError(t, life.put(a))
			life.age()
			require.NoError(t, life.put(b))
			life.flush() // some pages of both chains are remote now
			life.damage(a)

			gate := vfs.NewGate()
			defer gate.Open()
			remote := regexp.MustCompile("^" + regexp.QuoteMeta(life.o.Remote.Root))
			life.inj.Add(vfs.Rule{Path: remote, Ops: []vfs.Op{op}, Gate: gate})
			s.guard.LookupIn, s.guard.StepIn = 5*time.Millisecond, 5*time.Millisecond
			setRemoteTimeout(s, 5*time.Millisecond)
			life.flush()
			before := runtime.NumGoroutine()
			for seed := range 2 * failuresToOpen {
				life.read(a)
				life.read(b)
				require.NoError(t, life.put(prompt(10+seed, testTokens)), "the local tier goes on")
				s.guard.Breaker.Success() // a call at once, unlike with a real breaker
			}
			life.flush()
			_, err := recount(ctx, s)
			require.NoError(t, err, "a remote tier that hangs is no error of a scan")

			// The number of hanging operations is bounded, and so is the number of operations
			// that wait to release them.
			stuck := 0
			for drained := false; !drained; {
				select {
				case <-gate.Entered():
					stuck++
				default:
					drained = true
				}
			}
			require.LessOrEqual(t, stuck, 2*remoteWorkers)
			require.LessOrEqual(t, runtime.NumGoroutine(), before+4*(2*remoteWorkers))
			closeInTime(t, s)
			gate.Open()
			require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+1 }, 10*time.Second, time.Millisecond,
				"what hung has ended")
		})
	}
}

// closeInTime closes a store and fails when Close takes longer than promised.
func closeInTime(t *testing.T, s *Store) {
	t.Helper()
	begin := time.Now()
	require.NoError(t, s.Close())
	require.Less(t, time.Since(begin), 5*time.Second)
}

// TestCloseLeavesADiskThatHangs makes one kind of operation of the local tier hang for good.
// Close returns with an error.
func TestCloseLeavesADiskThatHangs(t *testing.T) {
	for _, op := range []vfs.Op{vfs.OpOpen, vfs.OpLock, vfs.OpReadDir} { // of the manifest, the ledger and the process's files
		t.Run(string(op), func(t *testing.T) {
			t.Parallel()
			inj := vfs.Inject(quickFS)
			s, err := Open(ctx, testOptions(t, withFS(inj)))
			require.NoError(t, err)
			putChain(t, s, prompt(1, testTokens))
			require.NoError(t, s.Flush(ctx))
			s.local.book.Hit(s.opt.Fingerprint) // to be recorded
			gate := hold(inj, vfs.Rule{Ops: []vfs.Op{op}})
			closed := closing(s)
			<-gate.Entered()
			requireCloseLeaves(t, s, closed, gate)
		})
	}
}

// closing closes a store, and tells the error.
func closing(s *Store) <-chan error {
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	return closed
}

// requireCloseLeaves requires that a Close returns with an error while the local disk hangs, and that the
// store has left no file once the disk goes on.
func requireCloseLeaves(t *testing.T, s *Store, closed <-chan error, gate *vfs.Gate) {
	t.Helper()
	select {
	case err := <-closed:
		require.Error(t, err)
	case <-time.After(2 * closePatience):
		t.Error("Close waits")
	}
	gate.Open()
	require.Eventually(t, func() bool {
		left, err := os.ReadDir(filepath.Join(s.opt.Local.Root, storetest.VersionDir, storetest.TmpDir))
		return err == nil && len(left) == 0
	}, 10*time.Second, time.Millisecond, "it has left")
}

// TestCloseLeavesALookAtMemory makes the local disk hang while the store looks for the runners that share
// its memory.
func TestCloseLeavesALookAtMemory(t *testing.T) {
	t.Parallel()
	inj := vfs.Inject(quickFS)
	s, err := Open(ctx, testOptions(t, withFS(inj), withRAM(plenty)))
	require.NoError(t, err)
	putChain(t, s, prompt(1, testTokens))
	require.NoError(t, s.Flush(ctx))
	gate := hold(inj, vfs.Rule{Ops: []vfs.Op{vfs.OpReadDir}, Path: regexp.MustCompile(storetest.TmpDir + "$")})
	<-gate.Entered()
	requireCloseLeaves(t, s, closing(s), gate)
}

// deadlines is a Tier that never answers a look-up and records the deadlines of operations.
type deadlines struct {
	tier.Disk
	mu    sync.Mutex
	asked int
	last  time.Time // the latest deadline of any operation
}

func (d *deadlines) hang(ctx context.Context) error {
	end, ok := ctx.Deadline()
	if ctx.Err() != nil {
		return ctx.Err() // refused before the tier
	}
	d.mu.Lock()
	d.asked++
	if !ok {
		end = end.AddDate(1000, 0, 0)
	}
	if end.After(d.last) {
		d.last = end
	}
	d.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (d *deadlines) Find(ctx context.Context, _ []pagefile.Name, _ bool) ([]tier.Info, error) {
	return nil, d.hang(ctx)
}

func (d *deadlines) Branches(ctx context.Context, _ pagefile.Key, _ []byte) ([]tier.Branch, error) {
	return nil, d.hang(ctx)
}

// TestALookupHasOneBudget checks the deadlines that a look-up passes on: all operations of the
// look-up together may take RemoteTimeout longer.
func TestALookupHasOneBudget(t *testing.T) {
	s := open(t, testOptions(t, withRemote(t), func(o *Options) { o.RemoteTimeout = 0 }))
	require.Equal(t, DefaultRemoteTimeout, s.opt.RemoteTimeout)
	require.LessOrEqual(t, DefaultRemoteTimeout, 250*time.Millisecond)
	setRemoteTimeout(s, 200*time.Millisecond) // enough for the local tier on a busy machine
	inner := &deadlines{Disk: tier.OnDisk(s.guard.Inner)}
	s.guard.Inner = inner
	begin := time.Now()
	require.Empty(t, s.Find(ctx, Prompt{Tokens: prompt(1, 100*testTokens+3)}).Exact)
	took := time.Since(begin)
	inner.mu.Lock()
	defer inner.mu.Unlock()
	require.Equal(t, 1, inner.asked, "no operation runs after the budget is used up")
	require.LessOrEqual(t, inner.last.Sub(begin), took+s.lookup.remoteTimeout)
	require.Zero(t, s.Stats().Remote.Pages)
}

// TestAbandonedUploadLeavesNothing makes a demotion hang in every operation that writes, and
// lets the operation continue after it was given up.
func TestAbandonedUploadLeavesNothing(t *testing.T) {
	page := physicalFaultPage(t)
	for _, op := range []vfs.Op{vfs.OpCreate, vfs.OpWrite, vfs.OpSync, vfs.OpRename, vfs.OpChtimes, vfs.OpClose} {
		t.Run(string(op), func(t *testing.T) {
			life := newFaultLife(t, page)
			s := life.open()
			life.demoteOne() // directories and the manifest exist
			tokens := prompt(1, testTokens)
			require.NoError(t, life.put(tokens))
			info := mustStat(t, s.disk, s.pages.Page(pageKeyOf(tokens)))

			gate := vfs.NewGate()
			remote := regexp.MustCompile("^" + regexp.QuoteMeta(life.o.Remote.Root) + `.*\.(tmp|kvp)$`)
			life.inj.Add(vfs.Rule{Path: remote, Ops: []vfs.Op{op}, Gate: gate})
			s.guard.StepIn = 5 * time.Millisecond
			require.Error(t, s.demote(ctx, info))
			require.True(t, s.Has(info.Key), "a page that was not moved stays")
			gate.Open()
			s.guard.StepIn = time.Minute
			s.guard.Breaker.Success()
			// The rename may have succeeded without an answer.
			life.inj.Reset()
			require.NoError(t, s.demote(ctx, info))
			require.Equal(t, testTokens, life.read(tokens))
			// Files of a given-up upload are removed in the background.
			require.Eventually(t, func() bool { return len(life.walk(life.o.Remote.Root).temps) == 0 },
				10*time.Second, time.Millisecond)
			require.NoError(t, s.Close())
		})
	}
}

// TestRemoteRootThatVanishes removes the directory of a remote tier and brings it back: the
// store never makes that directory.
func TestRemoteRootThatVanishes(t *testing.T) {
	page := physicalFaultPage(t)
	life := newFaultLife(t, page)
	s := life.open()
	life.demoteOne()
	away := life.o.Remote.Root + "-away"
	require.NoError(t, life.mem.Rename(life.o.Remote.Root, away))
	tokens := prompt(1, testTokens)
	require.NoError(t, life.put(tokens))
	info := mustStat(t, s.disk, s.pages.Page(pageKeyOf(tokens)))
	require.Error(t, s.demote(ctx, info))
	require.True(t, errors.Is(s.demote(ctx, info), tier.ErrTierDown) || s.Stats().Remote.Down)
	_, err := life.mem.Lstat(life.o.Remote.Root)
	require.ErrorIs(t, err, fs.ErrNotExist, "an unmounted mount point is not filled")
	require.Equal(t, testTokens, life.read(tokens))

	require.NoError(t, life.mem.Rename(away, life.o.Remote.Root))
	s.guard.Breaker.Success()
	require.NoError(t, s.demote(ctx, info))
	require.Equal(t, testTokens, life.read(prompt(5, testTokens)), "stored pages are found again")
	require.NoError(t, s.Close())
}

// TestBreakerOpensWhileLookupsWork makes only operations that move data fail: each takes its
// whole time limit, and the look-ups between them succeed.
func TestBreakerOpensWhileLookupsWork(t *testing.T) {
	page := physicalFaultPage(t)
	life := newFaultLife(t, page)
	s := life.open()
	life.demoteOne()
	tokens := prompt(5, testTokens) // tokens of the page that was demoted
	ref := s.Find(ctx, Prompt{Tokens: tokens}).Exact[0]
	require.Equal(t, tier.Remote, ref.Tier)
	life.inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRead}, Err: syscall.EIO})
	for range failuresToOpen {
		require.False(t, s.Stats().Remote.Down)
		require.Zero(t, life.read(tokens))
	}
	require.True(t, s.Stats().Remote.Down)

	// A look-up that works closes the breaker; one read that fails opens it at once.
	for range 3 {
		askAgain(s)
		require.Len(t, s.Find(ctx, Prompt{Tokens: tokens}).Exact, 1)
		require.False(t, s.Stats().Remote.Down)
		require.Zero(t, life.read(tokens))
		require.True(t, s.Stats().Remote.Down)
	}
	life.inj.Reset()
	s.guard.Breaker.Success()
	require.Equal(t, testTokens, life.read(tokens))
	require.NoError(t, s.Close())
}
