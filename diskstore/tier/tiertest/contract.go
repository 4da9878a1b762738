// Package tiertest checks the contract of tier.Tier for every implementation.
package tiertest

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

var ctx = context.Background()

// Fingerprint is the fingerprint of all files that the contract's tests make.
var Fingerprint = pagefile.Key{0: 1, 31: 0xfe}

// Contract checks the rules for every tier. open returns a new, empty tier, which Contract
// closes.
func Contract(t *testing.T, open func(t *testing.T) tier.Tier) {
	for name, run := range map[string]func(*testing.T, tier.Tier){
		"absent":      testAbsent,
		"upload":      testUpload,
		"abort":       testAbort,
		"list":        testList,
		"remove":      testRemove,
		"quarantine":  testQuarantine,
		"lock":        testLock,
		"context":     testContext,
		"fingerprint": testFingerprints,
	} {
		t.Run(name, func(t *testing.T) {
			tr := open(t)
			run(t, tr)
			require.NoError(t, tr.Close())
			_, err := tr.Stat(ctx, Page(1))
			require.ErrorIs(t, err, tier.ErrClosed)
		})
	}
}

// Page returns the name of a page whose key begins with n.
func Page(n byte) pagefile.Name {
	return pagefile.Name{Fingerprint: Fingerprint, Class: pagefile.ClassPage, Key: pagefile.Key{n}}
}

// Tail returns the name of a tail of a parent.
func Tail(parent, n byte) pagefile.Name {
	return pagefile.Name{Fingerprint: Fingerprint, Class: pagefile.ClassTail, Parent: pagefile.Key{parent}, Key: pagefile.Key{n}}
}

// Upload stores content under a name.
func Upload(t testing.TB, tr tier.Tier, name pagefile.Name, content []byte, used time.Time) tier.Committed {
	t.Helper()
	up, err := tr.Create(ctx, name)
	require.NoError(t, err)
	defer up.Abort()
	for part := range bytes.SplitSeq(content, nil) {
		require.NoError(t, up.Write(ctx, part))
	}
	done, err := up.Commit(ctx, used)
	require.NoError(t, err)
	return done
}

func testAbsent(t *testing.T, tr tier.Tier) {
	_, err := tr.Stat(ctx, Page(1))
	require.ErrorIs(t, err, tier.ErrNotFound)
	_, err = tr.Open(ctx, Page(1))
	require.ErrorIs(t, err, tier.ErrNotFound)
	require.ErrorIs(t, tr.Touch(ctx, Page(1), time.Now()), tier.ErrNotFound)
	removed, err := tr.Remove(ctx, tier.Info{Name: Page(1)})
	require.NoError(t, err)
	require.False(t, removed)
	moved, err := tr.Quarantine(ctx, tier.Info{Name: Page(1)}, "test")
	require.NoError(t, err)
	require.False(t, moved)
	infos, err := tr.Leading(ctx, []pagefile.Name{Page(1)})
	require.NoError(t, err)
	require.Empty(t, infos)
	infos, err = tr.Tails(ctx, Fingerprint, pagefile.Key{1})
	require.NoError(t, err)
	require.Empty(t, infos)
	require.Empty(t, listTier(t, tr))
	require.NoError(t, tr.SyncRemoved(ctx, []pagefile.Name{Page(1), Tail(1, 1)}))
}

// listTier lists all shards of a tier.
func listTier(t *testing.T, tr tier.Tier) []tier.Info {
	t.Helper()
	shards, err := tr.Shards(ctx)
	require.NoError(t, err)
	var infos []tier.Info
	for _, shard := range shards {
		some, err := tr.ListShard(ctx, shard)
		require.NoError(t, err)
		for _, info := range some {
			require.Equal(t, shard, tier.ShardOf(info.Name))
		}
		infos = append(infos, some...)
	}
	return infos
}

func testUpload(t *testing.T, tr tier.Tier) {
	content := bytes.Repeat([]byte("0123456789"), 20_000)
	used := time.Unix(1_700_000_000, 0)
	up, err := tr.Create(ctx, Page(1))
	require.NoError(t, err)
	require.NoError(t, up.Write(ctx, content[:5]))
	require.NoError(t, up.Write(ctx, content[5:]))
	_, err = tr.Stat(ctx, Page(1))
	require.ErrorIs(t, err, tier.ErrNotFound, "nothing is visible before Commit")
	done, err := up.Commit(ctx, used)
	require.NoError(t, err)
	up.Abort() // no effect after Commit
	require.False(t, done.Replaced)
	require.NoError(t, tr.Persist(ctx, Page(1)))

	info, err := tr.Stat(ctx, Page(1))
	require.NoError(t, err)
	require.Equal(t, Page(1), info.Name)
	require.EqualValues(t, len(content), info.Bytes)
	require.Equal(t, done.Physical, info.Physical)
	require.True(t, used.Equal(info.Used))

	blob, err := tr.Open(ctx, Page(1))
	require.NoError(t, err)
	require.EqualValues(t, len(content), blob.Info().Bytes)
	got := make([]byte, len(content)-3)
	require.NoError(t, blob.ReadAt(ctx, got, 3))
	require.Equal(t, content[3:], got)
	require.Error(t, blob.ReadAt(ctx, got, 4), "the file ends first")
	blob.Close()

	again := Upload(t, tr, Page(1), content, used)
	require.True(t, again.Replaced)
	later := used.Add(time.Hour)
	require.NoError(t, tr.Touch(ctx, Page(1), later))
	info, err = tr.Stat(ctx, Page(1))
	require.NoError(t, err)
	require.True(t, later.Equal(info.Used))
	space, err := tr.Space(ctx)
	require.NoError(t, err)
	require.Positive(t, space.Free)
	require.Greater(t, space.Total, space.Free)
	before := time.Now()
	now, err := tr.Now(ctx)
	require.NoError(t, err)
	require.WithinRange(t, now, before.Add(-tier.ClockSlack), time.Now())
}

func testAbort(t *testing.T, tr tier.Tier) {
	up, err := tr.Create(ctx, Page(1))
	require.NoError(t, err)
	require.NoError(t, up.Write(ctx, []byte("half")))
	up.Abort()
	_, err = tr.Stat(ctx, Page(1))
	require.ErrorIs(t, err, tier.ErrNotFound)
	require.Empty(t, listTier(t, tr))
}

func testList(t *testing.T, tr tier.Tier) {
	now := time.Now()
	for n := range byte(20) {
		Upload(t, tr, Page(n), []byte("page"), now)
	}
	Upload(t, tr, Tail(1, 30), []byte("tail"), now)
	Upload(t, tr, Tail(1, 31), []byte("tail"), now)
	Upload(t, tr, Tail(2, 32), []byte("tail"), now)
	Upload(t, tr, pagefile.Name{Fingerprint: Fingerprint, Class: pagefile.ClassManifest}, []byte("{}"), now)
	names := make(map[pagefile.Name]bool)
	for _, info := range listTier(t, tr) {
		names[info.Name] = true
	}
	require.Len(t, names, 23)
	require.True(t, names[Page(7)] && names[Tail(1, 30)] && names[Tail(2, 32)])
	tails, err := tr.Tails(ctx, Fingerprint, pagefile.Key{1})
	require.NoError(t, err)
	require.Len(t, tails, 2)
	var ask []pagefile.Name
	for n := range byte(30) {
		ask = append(ask, Page(n))
	}
	infos, err := tr.Leading(ctx, ask)
	require.NoError(t, err)
	require.Len(t, infos, 20)
	infos, err = tr.Leading(ctx, append([]pagefile.Name{Page(99)}, ask...))
	require.NoError(t, err)
	require.Empty(t, infos)
}

func testRemove(t *testing.T, tr tier.Tier) {
	Upload(t, tr, Tail(1, 1), []byte("tail"), time.Now())
	for _, want := range []bool{true, false} {
		removed, err := tr.Remove(ctx, tier.Info{Name: Tail(1, 1)})
		require.NoError(t, err)
		require.Equal(t, want, removed)
	}
	Upload(t, tr, Tail(1, 1), []byte("tail"), time.Now()) // the directory was removed with its last tail
	_, err := tr.Stat(ctx, Tail(1, 1))
	require.NoError(t, err)
}

func testQuarantine(t *testing.T, tr tier.Tier) {
	Upload(t, tr, Page(1), []byte("bad"), time.Now())
	for _, want := range []bool{true, false} {
		moved, err := tr.Quarantine(ctx, tier.Info{Name: Page(1)}, "test")
		require.NoError(t, err)
		require.Equal(t, want, moved)
	}
	_, err := tr.Stat(ctx, Page(1))
	require.ErrorIs(t, err, tier.ErrNotFound)
	require.Empty(t, listTier(t, tr))
}

func testLock(t *testing.T, tr tier.Tier) {
	release, err := tr.Lock(ctx)
	require.NoError(t, err)
	_, err = tr.Lock(ctx)
	require.ErrorIs(t, err, tier.ErrLocked)
	release()
	require.Eventually(t, func() bool { // an isolated tier releases in the background
		release, err := tr.Lock(ctx)
		if err == nil {
			release()
		}
		return err == nil
	}, 10*time.Second, time.Millisecond)
}

func testContext(t *testing.T, tr tier.Tier) {
	done, cancel := context.WithCancel(ctx)
	cancel()
	Upload(t, tr, Page(1), []byte("page"), time.Now())
	_, err := tr.Stat(done, Page(1))
	require.ErrorIs(t, err, done.Err())
	_, err = tr.Shards(done)
	require.ErrorIs(t, err, done.Err())
	_, err = tr.ListShard(done, tier.ShardOf(Page(1)))
	require.ErrorIs(t, err, done.Err())
	_, err = tr.Create(done, Page(2))
	require.ErrorIs(t, err, done.Err())
	_, err = tr.Stat(ctx, Page(1))
	require.NoError(t, err, "a caller that left says nothing about the tier")
}

func testFingerprints(t *testing.T, tr tier.Tier) {
	manifest := pagefile.Name{Fingerprint: Fingerprint, Class: pagefile.ClassManifest}
	Upload(t, tr, manifest, []byte("{}"), time.Now())
	Upload(t, tr, Page(1), []byte("page"), time.Now())
	keys, err := tr.Fingerprints(ctx)
	require.NoError(t, err)
	require.Equal(t, []pagefile.Key{Fingerprint}, keys)
	require.NoError(t, tr.DropFingerprint(ctx, Fingerprint))
	_, err = tr.Stat(ctx, manifest)
	require.ErrorIs(t, err, tier.ErrNotFound)
	_, err = tr.Stat(ctx, Page(1))
	require.NoError(t, err, "pages keep what holds them")
	_, err = tr.Remove(ctx, tier.Info{Name: Page(1)})
	require.NoError(t, err)
	require.NoError(t, tr.DropFingerprint(ctx, Fingerprint))
	require.NoError(t, tr.DropFingerprint(ctx, Fingerprint))
	keys, err = tr.Fingerprints(ctx)
	require.NoError(t, err)
	require.Empty(t, keys)
}
