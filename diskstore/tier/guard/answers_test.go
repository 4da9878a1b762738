package guard

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
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
	infos  func([]tier.Info) []tier.Info // of lists and of single files

	branches []tier.Branch // listed besides
}

func (o *odd) Branches(ctx context.Context, fingerprint pagefile.Key, prefix []byte) ([]tier.Branch, error) {
	branches, err := o.Disk.Branches(ctx, fingerprint, prefix)
	return append(branches, o.branches...), err
}

func (o *odd) list(infos []tier.Info, err error) ([]tier.Info, error) {
	if o.infos != nil {
		infos = o.infos(infos)
	}
	return infos, err
}

func (o *odd) Find(ctx context.Context, names []pagefile.Name, leading bool) ([]tier.Info, error) {
	return o.list(o.Disk.Find(ctx, names, leading))
}

func (o *odd) ListShard(ctx context.Context, shard tier.Shard) ([]tier.Info, error) {
	return o.list(o.Disk.ListShard(ctx, shard))
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

func TestNothingIsAnError(t *testing.T) {
	tr, below := guardOdd(t, slog.New(slog.DiscardHandler), func() {})
	below.open = func(pagefile.Name) (tier.Blob, error) { return nil, nil }
	below.create = func(pagefile.Name) (tier.Upload, error) { return nil, nil }
	below.lock = func() (func(), error) { return nil, nil }
	for _, ask := range []func() error{
		func() error { _, err := tr.Open(ctx, tiertest.Page(1), false); return err },
		func() error { _, err := tr.Open(ctx, tiertest.Page(1), true); return err },
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

// oddBlob returns another description of its file.
type oddBlob struct {
	tier.Blob
	info  func() tier.Info
	read  func()
	close func()
}

func (b oddBlob) Info() tier.Info {
	if b.info == nil {
		return b.Blob.Info()
	}
	return b.info()
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

func (b oddBlob) Size() int64 { return -1 }

// oddUpload returns the Committed of a test.
type oddUpload struct {
	tier.Upload
	change func(tier.Committed, error) (tier.Committed, error)
}

func (u oddUpload) Commit(ctx context.Context, used time.Time) (tier.Committed, error) {
	return u.change(u.Upload.Commit(ctx, used))
}

// TestFileThatSaysLittleOfItself: an open file's length is the length in its description, its
// name is the requested name, and both were read when the file was opened.
func TestFileThatSaysLittleOfItself(t *testing.T) {
	tr, below := guardOdd(t, slog.New(slog.DiscardHandler), func() {})
	tiertest.Upload(t, tr, tiertest.Page(1), []byte("page"), time.Now())
	want, err := tier.Stat(ctx, tr, tiertest.Page(1))
	require.NoError(t, err)
	var asked int
	below.open = func(name pagefile.Name) (tier.Blob, error) {
		blob, err := below.Disk.Open(ctx, name, false)
		return oddBlob{Blob: blob, info: func() tier.Info {
			asked++
			info := blob.Info()
			info.Name, info.Physical = pagefile.Name{}, 0
			return info
		}}, err
	}
	for _, anew := range []bool{false, true} {
		asked = 0
		blob, err := tr.Open(ctx, tiertest.Page(1), anew)
		require.NoError(t, err)
		for range 3 {
			require.EqualValues(t, 4, blob.Size())
			require.Equal(t, want.Name, blob.Info().Name)
			require.EqualValues(t, pagefile.PageAlign, blob.Info().Physical)
		}
		require.Equal(t, 1, asked)
		blob.Close()
	}
	below.open = func(name pagefile.Name) (tier.Blob, error) {
		blob, err := below.Disk.Open(ctx, name, false)
		return oddBlob{Blob: blob, info: func() tier.Info { return tier.Info{Bytes: -1} }}, err
	}
	_, err = tr.Open(ctx, tiertest.Page(1), false)
	require.ErrorIs(t, err, errAnswer)

	hung := make(chan struct{})
	below.open = func(name pagefile.Name) (tier.Blob, error) {
		blob, err := below.Disk.Open(ctx, name, false)
		return oddBlob{Blob: blob, info: func() tier.Info { <-hung; return blob.Info() }}, err
	}
	tr.StepIn = 5 * time.Millisecond
	_, err = tr.Open(ctx, tiertest.Page(1), false)
	require.ErrorIs(t, err, tier.ErrTierTimeout)
	close(hung)
}

// TestFilesOccupySpace: budgets count a file even if the tier reports no space for it.
func TestFilesOccupySpace(t *testing.T) {
	tr, below := guardOdd(t, slog.New(slog.DiscardHandler), func() {})
	below.infos = func(infos []tier.Info) []tier.Info {
		for i := range infos {
			infos[i].Physical = 0
		}
		return infos
	}
	page, tail := tiertest.Page(1), tiertest.Tail(2)
	for _, name := range []pagefile.Name{page, tail} {
		tiertest.Upload(t, tr, name, []byte("page"), time.Now())
		one, err := tier.Stat(ctx, tr, name)
		require.NoError(t, err)
		require.EqualValues(t, pagefile.PageAlign, one.Physical)
		infos, err := tr.ListShard(ctx, tier.ShardOf(name))
		require.NoError(t, err)
		require.Equal(t, []tier.Info{one}, infos)
	}
	infos, err := tier.Leading(ctx, tr, []pagefile.Name{page})
	require.NoError(t, err)
	require.EqualValues(t, pagefile.PageAlign, infos[0].Physical)
}

// TestBranchesOfOthers: branches other than the requested ones are left out.
func TestBranchesOfOthers(t *testing.T) {
	tr, below := guardOdd(t, slog.New(slog.DiscardHandler), func() {})
	good := tier.Branch{Fingerprint: tiertest.Fingerprint, Prefix: pagefile.Key{1}, Class: pagefile.ClassTail, Key: pagefile.Key{2}, Tokens: 3}
	require.NoError(t, tr.AddBranch(ctx, good, false))
	for _, change := range []func(b *tier.Branch){
		func(b *tier.Branch) { b.Prefix = pagefile.Key{3} },
		func(b *tier.Branch) { b.Fingerprint = pagefile.Key{3} },
		func(b *tier.Branch) { b.Longer = true },
		func(b *tier.Branch) { b.Tokens = 0 },
		func(b *tier.Branch) { b.Tokens = -1 },
		func(b *tier.Branch) { b.Class = pagefile.ClassManifest },
	} {
		bad := good
		change(&bad)
		below.branches = append(below.branches, bad)
	}
	for _, n := range []int{1, 2, len(good.Prefix)} {
		branches, err := tr.Branches(ctx, tiertest.Fingerprint, good.Prefix[:n])
		require.NoError(t, err)
		require.Equal(t, []tier.Branch{good}, branches)
	}
}

// TestCommitThatSaysLittle: the file counts with the written bytes, and a Commit that returns
// another length has failed.
func TestCommitThatSaysLittle(t *testing.T) {
	bad := errors.New("bad")
	used := time.Unix(1_700_000_000, 0)
	for name, c := range map[string]struct {
		change func(tier.Committed, error) (tier.Committed, error)
		bytes  int64
		err    error
	}{
		"nothing": {func(tier.Committed, error) (tier.Committed, error) { return tier.Committed{}, nil }, 4, errAnswer},
		"longer": {func(done tier.Committed, err error) (tier.Committed, error) {
			done.Bytes++
			return done, err
		}, 4, errAnswer},
		"no space":      {func(done tier.Committed, _ error) (tier.Committed, error) { done.Physical = 0; return done, nil }, 4, nil},
		"visible":       {func(done tier.Committed, _ error) (tier.Committed, error) { done.Bytes = 0; return done, bad }, 4, bad},
		"not committed": {func(tier.Committed, error) (tier.Committed, error) { return tier.Committed{}, bad }, 0, bad},
	} {
		t.Run(name, func(t *testing.T) {
			tr, below := guardOdd(t, slog.New(slog.DiscardHandler), func() {})
			below.create = func(name pagefile.Name) (tier.Upload, error) {
				up, err := below.Disk.Create(ctx, name)
				return oddUpload{up, c.change}, err
			}
			up, err := tr.Create(ctx, tiertest.Page(1))
			require.NoError(t, err)
			defer up.Abort()
			require.NoError(t, up.Write(ctx, []byte("page")))
			done, err := up.Commit(ctx, used)
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.bytes, done.Bytes)
			if c.bytes > 0 {
				require.Equal(t, tiertest.Page(1), done.Name)
				require.True(t, used.Equal(done.Used))
				require.GreaterOrEqual(t, done.Physical, int64(pagefile.PageAlign))
			}
		})
	}
}

// TestListsThatCannotBe: a file listed twice counts once, and files other than the requested
// ones are an error in a list whose order has a meaning.
func TestListsThatCannotBe(t *testing.T) {
	tr, below := guardOdd(t, slog.New(slog.DiscardHandler), func() {})
	var names []pagefile.Name
	for n := range byte(3) {
		names = append(names, tiertest.Page(n))
		tiertest.Upload(t, tr, names[n], []byte("page"), time.Now())
		tiertest.Upload(t, tr, tiertest.Tail(n), []byte("tail"), time.Now())
	}
	below.infos = func(infos []tier.Info) []tier.Info { return append(infos, infos...) }
	for _, name := range []pagefile.Name{names[0], tiertest.Tail(1)} {
		infos, err := tr.ListShard(ctx, tier.ShardOf(name))
		require.NoError(t, err)
		require.Len(t, infos, 1)
	}
	_, err := tier.Leading(ctx, tr, names)
	require.ErrorIs(t, err, errAnswer)

	below.infos = func(infos []tier.Info) []tier.Info { slices.Reverse(infos); return infos }
	_, err = tier.Leading(ctx, tr, names)
	require.ErrorIs(t, err, errAnswer)
	below.infos = func([]tier.Info) []tier.Info { return []tier.Info{{Name: tiertest.Tail(7), Bytes: 4}} }
	for _, shard := range []tier.Shard{tier.ShardOf(names[0]), tier.ShardOf(tiertest.Tail(1))} {
		infos, err := tr.ListShard(ctx, shard)
		require.NoError(t, err)
		require.Empty(t, infos, "the file of another shard is counted there")
	}
	below.infos = func([]tier.Info) []tier.Info { return []tier.Info{{Name: names[0], Bytes: -1}} }
	_, err = tr.ListShard(ctx, tier.ShardOf(names[0]))
	require.ErrorIs(t, err, errAnswer)
	tr.Breaker.Success()
	_, err = tier.Stat(ctx, tr, names[0])
	require.ErrorIs(t, err, errAnswer)
	tr.Breaker.Success()
	_, err = tier.Leading(ctx, tr, names[:1])
	require.ErrorIs(t, err, errAnswer)
	tr.Breaker.Success()
	below.infos = func(infos []tier.Info) []tier.Info { return infos[:len(infos)-1] }
	_, err = tr.Find(ctx, names, false)
	require.ErrorIs(t, err, errAnswer, "a file without an answer is not missing")
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
