package guard

import (
	"bytes"
	"context"
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

// odd is a tier some of whose methods are replaced.
type odd struct {
	tier.Tier
	open   func(name pagefile.Name) (tier.Blob, error)
	create func(name pagefile.Name) (tier.Upload, error)
	lock   func() (func(), error)
}

func (o *odd) Open(ctx context.Context, name pagefile.Name) (tier.Blob, error) {
	if o.open == nil {
		return o.Tier.Open(ctx, name)
	}
	return o.open(name)
}

func (o *odd) Reopen(ctx context.Context, name pagefile.Name) (tier.Blob, error) {
	return o.Open(ctx, name)
}

func (o *odd) Create(ctx context.Context, name pagefile.Name) (tier.Upload, error) {
	if o.create == nil {
		return o.Tier.Create(ctx, name)
	}
	return o.create(name)
}

func (o *odd) Lock(ctx context.Context) (func(), error) {
	if o.lock == nil {
		return o.Tier.Lock(ctx)
	}
	return o.lock()
}

// guardOdd guards a tier in a directory, whose methods the test replaces.
func guardOdd(t *testing.T, log *slog.Logger, failed func()) (*Tier, *odd) {
	below := &odd{Tier: dir.New(storetest.QuickFS, storetest.PrivateDir(t), dir.Options{})}
	tr := New(below, time.Minute, time.Minute, log, time.Now, failed)
	t.Cleanup(func() { _ = tr.Close() })
	return tr, below
}

func TestNothingIsAnError(t *testing.T) {
	tr, below := guardOdd(t, slog.New(slog.DiscardHandler), func() {})
	below.open = func(pagefile.Name) (tier.Blob, error) { return nil, nil }
	below.create = func(pagefile.Name) (tier.Upload, error) { return nil, nil }
	below.lock = func() (func(), error) { return nil, nil }
	for _, ask := range []func() error{
		func() error { _, err := tr.Open(ctx, tiertest.Page(1)); return err },
		func() error { _, err := tr.Reopen(ctx, tiertest.Page(1)); return err },
		func() error { _, err := tr.Create(ctx, tiertest.Page(1)); return err },
		func() error { _, err := tr.Lock(ctx); return err },
	} {
		tr.Breaker.Success()
		require.ErrorIs(t, ask(), errNothing)
	}
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
	require.Contains(t, log.String(), "guard.TestPanicsAreFailures", "the stack says where")

	tr.Breaker.Success()
	below.lock = func() (func(), error) { return func() { panic("release") }, nil }
	release, err := tr.Lock(ctx)
	require.NoError(t, err)
	release()
	below.open = func(pagefile.Name) (tier.Blob, error) { return panicking{}, nil }
	blob, err := tr.Open(ctx, tiertest.Page(1))
	require.NoError(t, err)
	require.ErrorIs(t, blob.ReadAt(ctx, make([]byte, 5), 0), errPanic)
	blob.Close()
	below.create = func(pagefile.Name) (tier.Upload, error) { return panicking{}, nil }
	up, err := tr.Create(ctx, tiertest.Page(1))
	require.NoError(t, err)
	require.ErrorIs(t, up.Write(ctx, []byte("page")), errPanic)
	up.Abort()
	require.Eventually(t, func() bool { return tr.Left() == 0 }, 10*time.Second, time.Millisecond)
	_, err = tr.Shards(ctx)
	require.NoError(t, err, "the workers are there still")
}
