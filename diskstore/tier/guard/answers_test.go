package guard

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
)

// odd is a tier with some methods replaced.
type odd struct {
	tier.Disk
	open   func(name pagefile.Name) (tier.Blob, error)
	create func(name pagefile.Name) (tier.Upload, error)
	lock   func() (func(), error)
	list   func([]tier.Info) []tier.Info // changes the list of a shard
}

func (o *odd) ListShard(ctx context.Context, shard tier.Shard) ([]tier.Info, error) {
	infos, err := o.Disk.ListShard(ctx, shard)
	if o.list != nil {
		infos = o.list(infos)
	}
	return infos, err
}

func (o *odd) Open(ctx context.Context, name pagefile.Name, anew bool) (tier.Blob, error) {
	if o.open == nil {
		return o.Disk.Open(ctx, name, anew)
	}
	return o.open(name)
}

func (o *odd) Create(ctx context.Context, name pagefile.Name) (tier.Upload, error) {
	if o.create == nil {
		return o.Disk.Create(ctx, name)
	}
	return o.create(name)
}

func (o *odd) Lock(ctx context.Context) (func(), error) {
	if o.lock == nil {
		return o.Disk.Lock(ctx)
	}
	return o.lock()
}

// guardOdd guards a tier in a directory, whose methods the test replaces.
func guardOdd(t *testing.T, log *slog.Logger, failed func()) (*Tier, *odd) {
	below := &odd{Disk: dir.New(storetest.QuickFS, storetest.PrivateDir(t), dir.Options{})}
	tr := New(below, time.Minute, time.Minute, log, time.Now, failed)
	t.Cleanup(func() { _ = tr.Close() })
	return tr, below
}

// panicking panics in every method that a test does not replace.
type panicking struct {
	tier.Blob
	tier.Upload
}

func (panicking) Info() tier.Info { return tier.Info{Name: tiertest.Page(1), Bytes: 5, Physical: 4096} }
func (panicking) Close()          { panic("close") }
func (panicking) Abort()          { panic("abort") }

// TestPanicsAreFailures: a panic of the tier below ends neither the process nor a worker.
func TestPanicsAreFailures(t *testing.T) {
	var log bytes.Buffer
	var failures atomic.Int32
	tr, below := guardOdd(t, slog.New(slog.NewTextHandler(&log, nil)), func() { failures.Add(1) })
	below.lock = func() (func(), error) { panic("lock") }
	for range breakerThreshold {
		require.False(t, tr.Breaker.Down())
		_, err := tr.Lock(ctx)
		require.ErrorIs(t, err, errPanic)
		require.ErrorContains(t, err, "lock")
	}
	require.True(t, tr.Breaker.Down())
	require.EqualValues(t, breakerThreshold, failures.Load())
	require.Equal(t, 1, strings.Count(log.String(), "stack="))
	require.Contains(t, log.String(), "guard.TestPanicsAreFailures", "the stack names the place of the panic")

	tr.Breaker.Success()
	below.lock = func() (func(), error) { return func() { panic("release") }, nil }
	release, err := tr.Lock(ctx)
	require.NoError(t, err)
	release()
	below.open = func(pagefile.Name) (tier.Blob, error) { return panicking{}, nil }
	blob, err := tr.Open(ctx, tiertest.Page(1), false)
	require.NoError(t, err)
	require.ErrorIs(t, blob.ReadAt(ctx, make([]byte, 5), 0), errPanic)
	blob.Close()
	below.create = func(pagefile.Name) (tier.Upload, error) { return panicking{}, nil }
	up, err := tr.Create(ctx, tiertest.Page(1))
	require.NoError(t, err)
	require.ErrorIs(t, up.Write(ctx, []byte("page")), errPanic)
	up.Abort()
	require.Eventually(t, func() bool { return tr.Left() == 0 }, 10*time.Second, time.Millisecond)
	_, _, err = tr.Survey(ctx)
	require.NoError(t, err, "the workers still exist")
}

// oddBlob tells a test of its reads and its end.
type oddBlob struct {
	tier.Blob
	info  func() tier.Info
	read  func()
	close func()
}

func (b oddBlob) Info() tier.Info {
	if b.info != nil {
		return b.info()
	}
	return b.Blob.Info()
}

func (b oddBlob) Close() {
	if b.close != nil {
		b.close()
	}
	b.Blob.Close()
}

func (b oddBlob) ReadAt(ctx context.Context, p []byte, off int64) error {
	if b.read != nil {
		b.read()
	}
	return b.Blob.ReadAt(ctx, p, off)
}

// TestAFileThatIsListedTwice counts once.
func TestAFileThatIsListedTwice(t *testing.T) {
	tr, below := guardOdd(t, slog.New(slog.DiscardHandler), func() {})
	below.list = func(infos []tier.Info) []tier.Info { return append(infos, infos...) }
	for _, name := range []pagefile.Name{tiertest.Page(1), tiertest.Tail(1)} {
		tiertest.Upload(t, tr, name, []byte("page"), time.Now())
		infos, err := tr.ListShard(ctx, tier.ShardOf(name))
		require.NoError(t, err)
		require.Len(t, infos, 1)
	}
}

// TestFileWithoutDescriptionIsClosed: a file whose description fails is not left open.
func TestFileWithoutDescriptionIsClosed(t *testing.T) {
	tr, below := guardOdd(t, slog.New(slog.DiscardHandler), func() {})
	tiertest.Upload(t, tr, tiertest.Page(1), []byte("page"), time.Now())
	closed := make(chan struct{})
	below.open = func(name pagefile.Name) (tier.Blob, error) {
		b, err := below.Disk.Open(ctx, name, false)
		return oddBlob{Blob: b, info: func() tier.Info { panic("no description") }, close: func() { close(closed) }}, err
	}
	_, err := tr.Open(ctx, tiertest.Page(1), false)
	require.ErrorIs(t, err, errPanic)
	<-closed
}

// damaged is a file whose bytes do not prove right.
type damaged struct{ tier.Blob }

func (damaged) ReadAt(context.Context, []byte, int64) error { return pagefile.Damaged("test") }

// TestADamagedFileIsAnAnswer: a tier that checks its files itself, as package sealed does, is not down where
// many of them are damaged.
func TestADamagedFileIsAnAnswer(t *testing.T) {
	tr, below := guardOdd(t, slog.New(slog.DiscardHandler), func() { t.Error("failed") })
	tiertest.Upload(t, below.Disk, tiertest.Page(1), []byte("page"), time.Now())
	below.open = func(name pagefile.Name) (tier.Blob, error) {
		blob, err := below.Disk.Open(ctx, name, false)
		return damaged{blob}, err
	}
	for range 2 * breakerThreshold {
		blob, err := tr.Open(ctx, tiertest.Page(1), false)
		require.NoError(t, err)
		require.ErrorIs(t, blob.ReadAt(ctx, make([]byte, 4), 0), pagefile.ErrDamaged)
		blob.Close()
	}
	require.False(t, tr.Breaker.Down())
}

// TestRefusedChangeIsNoFailure: an error of the function given to Account is the caller's
// error and not the tier's.
func TestRefusedChangeIsNoFailure(t *testing.T) {
	failures := 0
	tr, _ := guardOdd(t, slog.New(slog.DiscardHandler), func() { failures++ })
	refused := errors.New("refused")
	for range 2 * breakerThreshold {
		_, err := tr.Account(ctx, func([]byte, string) ([]byte, error) { return nil, refused })
		require.Equal(t, refused, err)
	}
	require.False(t, tr.Breaker.Down())
	require.Zero(t, failures)
}

// lateTier calls change once more after Account has returned, as a tier may after an error.
type lateTier struct {
	tier.Tier
	late func()
}

func (l *lateTier) Account(_ context.Context, change func([]byte, string) ([]byte, error)) ([]byte, error) {
	_, err := change([]byte("full"), "")
	l.late = func() { _, _ = change([]byte("newer"), "") }
	return nil, err
}

// TestALateChangeHidesNoRefusal: an answer of change after Account has returned is not the
// result of Account.
func TestALateChangeHidesNoRefusal(t *testing.T) {
	below := &lateTier{}
	clock := func() time.Time {
		if late := below.late; late != nil {
			late()
		}
		return time.Time{}
	}
	tr := New(below, time.Minute, time.Minute, slog.New(slog.DiscardHandler), clock, func() {})
	tr.Breaker.open = true // the clock is asked after the operation, because the operation closes the breaker
	refused := errors.New("refused")
	_, err := tr.Account(t.Context(), func(content []byte, _ string) ([]byte, error) {
		if string(content) == "full" {
			return nil, refused
		}
		return content, nil
	})
	require.Equal(t, refused, err)
	require.NotNil(t, below.late)
}
