package guard

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"regexp"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctx = context.Background()

// guarded isolates the tier in root, with limit for each step.
func guarded(t testing.TB, fsys vfs.FS, root string, limit time.Duration) *Tier {
	tr := New(dir.New(fsys, root, dir.Options{}), limit, limit, slog.New(slog.DiscardHandler), time.Now, func() {})
	t.Cleanup(func() { _ = tr.Close() }) // Close does not wait for operations that hang
	return tr
}

func TestContract(t *testing.T) {
	tiertest.Contract(t, func(t *testing.T) tier.Tier {
		return guarded(t, vfs.OS, storetest.PrivateDir(t), time.Minute)
	})
}

func TestBreaker(t *testing.T) {
	now := time.Unix(0, 0)
	b := newBreaker(slog.New(slog.DiscardHandler), func() time.Time { return now })
	bad := errors.New("bad")
	for range breakerThreshold - 1 {
		require.True(t, b.allow())
		b.failure(bad, false)
	}
	require.True(t, b.allow(), "a few failures are forgiven")
	b.Success()
	for range breakerThreshold {
		require.True(t, b.allow())
		b.failure(bad, false)
	}
	b.failure(bad, false) // an operation begun before does not prolong the backoff
	wait := breakerBackoffMin
	for range 10 { // failed probes double the backoff up to its limit
		require.False(t, b.allow())
		now = now.Add(wait - 1)
		require.False(t, b.allow())
		now = now.Add(1)
		require.True(t, b.allow(), "one probe")
		require.False(t, b.allow(), "and only one")
		b.failure(bad, false)
		wait = min(2*wait, breakerBackoffMax)
	}
	now = now.Add(wait)
	require.True(t, b.allow())
	b.neutral()
	require.True(t, b.allow(), "a neutral probe gives its place to the next")
	b.failure(bad, false)
	b.failure(bad, false) // an operation begun before does not prolong the backoff
	now = now.Add(wait)
	require.True(t, b.allow())
	b.Success()
	require.True(t, b.allow())
	require.True(t, b.allow())
	b.failure(bad, true)
	require.False(t, b.allow(), "some errors need no second look")
}

// TestBreakerOpensWhileReadsFail: each failure costs its whole time, and the look-ups between
// the failures succeed. After an opening one failure opens the breaker again, with a longer
// backoff each time.
func TestBreakerOpensWhileReadsFail(t *testing.T) {
	inj := vfs.Inject(storetest.QuickFS)
	tr := guarded(t, inj, storetest.PrivateDir(t), time.Minute)
	now := time.Unix(1_700_000_000, 0)
	tr.Breaker.Now = func() time.Time { return now }
	tiertest.Upload(t, tr, tiertest.Page(1), []byte("content"), now)
	blob, err := tr.Open(ctx, tiertest.Page(1), false)
	require.NoError(t, err)
	defer blob.Close()
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRead}, Err: syscall.EIO})
	fails := func() {
		require.False(t, tr.Breaker.Down())
		require.ErrorIs(t, blob.ReadAt(ctx, make([]byte, 7), 0), syscall.EIO)
		require.True(t, tr.reads.Load() > 0)
	}
	for range breakerThreshold {
		fails()
		if !tr.Breaker.Down() {
			_, err := tier.Stat(ctx, tr, tiertest.Page(1))
			require.NoError(t, err)
		}
	}
	require.True(t, tr.Breaker.Down())
	backoff := time.Duration(0)
	for range 3 {
		require.Greater(t, tr.Breaker.backoff, backoff)
		backoff = tr.Breaker.backoff
		now = now.Add(backoff)
		_, err := tier.Stat(ctx, tr, tiertest.Page(1))
		require.NoError(t, err)
		fails()
		require.True(t, tr.Breaker.Down())
	}
}

// TestReadsAtOnce: steps of a page are read at the same time, with any tier below, and the
// steps of two pages all find a worker.
func TestReadsAtOnce(t *testing.T) {
	tr := guarded(t, storetest.QuickFS, storetest.PrivateDir(t), time.Minute)
	tiertest.Upload(t, tr, tiertest.Page(1), []byte("content"), time.Now())
	below, err := tr.Inner.Open(ctx, tiertest.Page(1), false)
	require.NoError(t, err)
	defer below.Close()
	blob, err := tr.Open(ctx, tiertest.Page(1), false)
	require.NoError(t, err)
	defer blob.Close()
	require.Equal(t, 1, pagefile.ReadsAtOnce(below))
	require.Equal(t, transferWorkers/2, pagefile.ReadsAtOnce(blob))
}

// TestGivenUpReadNeverTouchesTheCallersMemory lets a read that was given up finish later. The
// race detector would report a write to buf.
func TestGivenUpReadNeverTouchesTheCallersMemory(t *testing.T) {
	gate := vfs.NewGate()
	inj := vfs.Inject(storetest.QuickFS)
	root := storetest.PrivateDir(t)
	tr := guarded(t, inj, root, time.Minute)
	tiertest.Upload(t, tr, tiertest.Page(1), []byte("content"), time.Now())
	blob, err := tr.Open(ctx, tiertest.Page(1), false)
	require.NoError(t, err)
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRead}, Gate: gate})
	tr.StepIn = 5 * time.Millisecond
	buf := make([]byte, 7)
	require.ErrorIs(t, blob.ReadAt(ctx, buf, 0), tier.ErrTierTimeout)
	copy(buf, "mine...")
	gate.Open()
	blob.Close()
	tr.LookupIn = time.Minute
	for range transferWorkers { // all workers are idle again
		tr.Transfer <- struct{}{}
	}
	require.Equal(t, "mine...", string(buf))
	for range transferWorkers {
		<-tr.Transfer
	}
}

func TestGoroutinesAreBoundedWhileTheRemoteHangs(t *testing.T) {
	inj, root, gate := vfs.Inject(storetest.QuickFS), storetest.PrivateDir(t), vfs.NewGate()
	tr := guarded(t, inj, root, 20*time.Millisecond)
	defer gate.Open()
	inj.Add(vfs.Rule{Path: regexp.MustCompile("^" + regexp.QuoteMeta(root)), Gate: gate})
	before := runtime.NumGoroutine()
	for range 40 {
		// Even with a breaker that allows every operation.
		tr.Breaker.Success()
		_, err := tier.Stat(ctx, tr, tiertest.Page(1))
		require.ErrorIs(t, err, tier.ErrTierTimeout)
	}
	// A timer that fires has a goroutine for a moment.
	require.LessOrEqual(t, runtime.NumGoroutine(), before+2*lookupWorkers)
}

// TestClosesWaitForAWorkerTogether: files are opened and reading them hangs, even after the context has
// ended. Closing the files needs only one goroutine, and when the reads return all files are closed.
func TestClosesWaitForAWorkerTogether(t *testing.T) {
	tr, below := guardOdd(t, slog.New(slog.DiscardHandler), func() {})
	tiertest.Upload(t, tr, tiertest.Page(1), []byte("page"), time.Now())
	hung := make(chan struct{})
	var open atomic.Int32
	below.open = func(name pagefile.Name) (tier.Blob, error) {
		blob, err := below.Disk.Open(ctx, name, false)
		open.Add(1)
		return oddBlob{Blob: blob, read: func() { <-hung }, close: func() { open.Add(-1) }}, err
	}
	before := runtime.NumGoroutine()
	for tr.ends.crowded() == nil {
		tr.Breaker.Success() // a breaker that allows every operation
		blob, err := tr.Open(ctx, tiertest.Page(1), false)
		require.NoError(t, err)
		tr.StepIn = time.Millisecond
		require.Error(t, blob.ReadAt(ctx, make([]byte, 4), 0))
		tr.StepIn = time.Minute
		blob.Close()
	}
	tr.Breaker.Success()
	_, err := tr.Open(ctx, tiertest.Page(1), false)
	require.ErrorIs(t, err, tier.ErrTierTimeout)
	_, err = tr.Create(ctx, tiertest.Page(2))
	require.ErrorIs(t, err, tier.ErrTierTimeout)
	_, err = tr.Lock(ctx)
	require.ErrorIs(t, err, tier.ErrTierTimeout)
	require.LessOrEqual(t, runtime.NumGoroutine(), before+2*transferWorkers)
	require.LessOrEqual(t, open.Load(), int32(maxEnds+2*transferWorkers))
	close(hung)
	require.Eventually(t, func() bool { return open.Load() == 0 }, 10*time.Second, time.Millisecond)
	blob, err := tr.Open(ctx, tiertest.Page(1), false)
	require.NoError(t, err)
	blob.Close()
}

// TestTransfersAroundAStep moves files of exactly one step, one byte less and one byte more
// through an isolated tier.
func TestTransfersAroundAStep(t *testing.T) {
	tr := guarded(t, storetest.QuickFS, storetest.PrivateDir(t), time.Minute)
	for i, size := range []int{pagefile.StepBytes - 1, pagefile.StepBytes, pagefile.StepBytes + 1, 2*pagefile.StepBytes + 1} {
		content := bytes.Repeat([]byte{1, 2, 3, 5, 7}, size/5+1)[:size]
		up, err := tr.Create(ctx, tiertest.Page(byte(i)))
		require.NoError(t, err)
		require.NoError(t, up.Write(ctx, content))
		_, err = up.Commit(ctx, time.Now())
		require.NoError(t, err)
		blob, err := tr.Open(ctx, tiertest.Page(byte(i)), false)
		require.NoError(t, err)
		got := make([]byte, size)
		require.NoError(t, blob.ReadAt(ctx, got, 0))
		require.True(t, bytes.Equal(content, got))
		require.Error(t, blob.ReadAt(ctx, got, 1), "the file ends first")
		blob.Close()
	}
}

// healthyTier opens files that end no read before another goroutine has run.
type healthyTier struct{ tier.Tier }

func (healthyTier) Close() error { return nil }

func (healthyTier) Open(context.Context, pagefile.Name, bool) (tier.Blob, error) {
	return healthyBlob{}, nil
}

type healthyBlob struct{}

func (healthyBlob) Size() int64     { return 1 << 20 }
func (healthyBlob) Info() tier.Info { return tier.Info{Bytes: 1 << 20} }
func (healthyBlob) Close()          {}

func (healthyBlob) ReadAt(context.Context, []byte, int64) error {
	for range 100 {
		runtime.Gosched()
	}
	return nil
}

// Files of a tier that answers are closed as fast as they are read: many readers of small
// pages are never refused because of files that wait to be closed.
func TestClosesKeepUpWithReaders(t *testing.T) {
	tr := New(healthyTier{}, time.Minute, time.Minute, slog.New(slog.DiscardHandler), time.Now, func() {})
	var readers errgroup.Group
	for range 24 {
		readers.Go(func() error {
			for range 100 {
				file, err := tr.Open(ctx, tiertest.Page(1), false)
				if err != nil {
					return err
				}
				var steps errgroup.Group
				for range 4 {
					steps.Go(func() error { return file.ReadAt(ctx, make([]byte, 512), 0) })
				}
				if err := steps.Wait(); err != nil {
					return err
				}
				file.Close()
			}
			return nil
		})
	}
	require.NoError(t, readers.Wait())
	require.NoError(t, tr.Close())
}

// stuckTier cannot remove the files of uploads that are given up.
type stuckTier struct {
	tier.Disk
	left   atomic.Int64
	leave  chan struct{} // lets Abort go on
	looked func()        // called before Left returns
}

func (s *stuckTier) Create(context.Context, pagefile.Name) (tier.Upload, error) {
	return &stuckUpload{t: s}, nil
}

func (s *stuckTier) Left() int64 {
	defer s.looked()
	return s.left.Load()
}

type stuckUpload struct {
	tier.Upload
	t     *stuckTier
	bytes int64
}

func (u *stuckUpload) Write(_ context.Context, p []byte) error {
	u.bytes += int64(len(p))
	return nil
}

func (u *stuckUpload) Abort() {
	<-u.t.leave
	u.t.left.Add(u.bytes)
}

// TestBytesThatStayAreNeverMissed: while an upload is given up and its file stays, its bytes are
// among those of the guard, or of the tier, or of both.
func TestBytesThatStayAreNeverMissed(t *testing.T) {
	below := &stuckTier{leave: make(chan struct{})}
	tr := New(below, time.Minute, time.Minute, slog.New(slog.DiscardHandler), time.Now, func() {})
	up, err := tr.Create(t.Context(), pagefile.Name{})
	require.NoError(t, err)
	require.NoError(t, up.Write(t.Context(), make([]byte, pagefile.PageAlign)))
	up.Abort()
	below.looked = func() {
		close(below.leave)
		for tr.Leaving.Load() > 0 {
			runtime.Gosched()
		}
	}
	require.GreaterOrEqual(t, tr.Left(), int64(pagefile.PageAlign))
}

// TestSlowListsDisturbNobody: lists of candidates take too long. The breaker stays closed, other
// look-ups have their workers, and further lists wait for none.
func TestSlowListsDisturbNobody(t *testing.T) {
	inj := vfs.Inject(vfs.OS)
	gate := vfs.NewGate()
	inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpReadDir}, Gate: gate})
	tr := guarded(t, inj, storetest.PrivateDir(t), time.Millisecond)
	fp := storetest.Fingerprint(1)
	for n := 0; n < 3*breakerThreshold || tr.lateLists.Load() < listWorkers; n++ {
		_, err := tr.Branches(ctx, fp, fp[:])
		require.ErrorIs(t, err, tier.ErrTierTimeout)
	}
	require.False(t, tr.Breaker.Down())
	tr.LookupIn = time.Hour
	_, err := tier.Stat(ctx, tr, pagefile.Name{Fingerprint: fp, Class: pagefile.ClassManifest})
	require.ErrorIs(t, err, tier.ErrNotFound)
	_, err = tr.Branches(ctx, fp, fp[:])
	require.ErrorIs(t, err, tier.ErrTierTimeout, "all workers of lists are taken")

	gate.Open()
	require.Eventually(t, func() bool { return tr.lateLists.Load() == 0 }, time.Minute, time.Millisecond)
	_, err = tr.Branches(ctx, fp, fp[:])
	require.NoError(t, err)
}
