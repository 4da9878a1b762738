// Package tiertest checks the contract of tier.Tier for every implementation.
package tiertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

var ctx = context.Background()

// Fingerprint is the fingerprint of all files that the contract's tests make.
var Fingerprint = pagefile.Key{0: 1, 31: 0xfe}

// Contract checks the rules for every tier. open returns a new, empty tier, which Contract closes.
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
		"branches":    testBranches,
		"fingerprint": testFingerprints,
		"describe":    testDescribe,
		"replaced":    testReplaced,
		"account":     testAccount,
		"concurrency": testConcurrency,
	} {
		t.Run(name, func(t *testing.T) {
			tr := open(t)
			run(t, tr)
			require.Eventually(t, func() bool { return tier.OnDisk(tr).Left() == 0 }, 10*time.Second, time.Millisecond, "of uploads that were given up")
			require.NoError(t, tr.Close())
			testClosed(t, tr)
		})
	}
}

// onDisk runs a check of what only a Disk gives.
func onDisk(tr tier.Tier, check func(tr tier.Disk)) {
	if disk, ok := tr.(tier.Disk); ok {
		check(disk)
	}
}

// Page returns the name of a page whose key begins with n.
func Page(n byte) pagefile.Name {
	return pagefile.Name{Fingerprint: Fingerprint, Class: pagefile.ClassPage, Key: pagefile.Key{n}}
}

// Tail returns the name of a tail whose key begins with n.
func Tail(n byte) pagefile.Name {
	return pagefile.Name{Fingerprint: Fingerprint, Class: pagefile.ClassTail, Key: pagefile.Key{n}}
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
	done, err := tier.Store(ctx, tier.OnDisk(tr), up, name, used)
	require.NoError(t, err)
	return done
}

func testAbsent(t *testing.T, tr tier.Tier) {
	_, err := tier.Stat(ctx, tr, Page(1))
	require.ErrorIs(t, err, tier.ErrNotFound)
	_, err = tr.Open(ctx, Page(1), false)
	require.ErrorIs(t, err, tier.ErrNotFound)
	require.ErrorIs(t, tr.Touch(ctx, Page(1), time.Now()), tier.ErrNotFound)
	removed, err := tr.Remove(ctx, tier.Info{Name: Page(1)})
	require.NoError(t, err)
	require.False(t, removed)
	moved, err := tr.Quarantine(ctx, tier.Info{Name: Page(1)}, "test")
	require.NoError(t, err)
	require.False(t, moved)
	infos, err := tier.Leading(ctx, tr, []pagefile.Name{Page(1)})
	require.NoError(t, err)
	require.Empty(t, infos)
	require.Empty(t, listTier(t, tr))
	require.NoError(t, tier.OnDisk(tr).SyncRemoved(ctx, []pagefile.Name{Page(1), Tail(1)}))
}

// listTier lists all shards of a tier.
func listTier(t *testing.T, tr tier.Tier) []tier.Info {
	t.Helper()
	_, shards, err := tr.Survey(ctx)
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
	require.NoError(t, up.Seal(ctx))
	_, err = tier.Stat(ctx, tr, Page(1))
	require.ErrorIs(t, err, tier.ErrNotFound, "nothing is visible before Commit")
	done, err := up.Commit(ctx, used)
	require.NoError(t, err)
	up.Abort() // no effect after Commit
	require.False(t, done.Replaced)
	require.NoError(t, tier.OnDisk(tr).Persist(ctx, Page(1)))

	blob, err := tr.Open(ctx, Page(1), false)
	require.NoError(t, err)
	require.NotNil(t, blob)
	got := make([]byte, len(content)-3)
	require.NoError(t, blob.ReadAt(ctx, got, 3))
	require.Equal(t, content[3:], got)
	require.Error(t, blob.ReadAt(ctx, got, 4), "the file ends first")
	blob.Close()

	later := used.Add(time.Hour)
	require.NoError(t, tr.Touch(ctx, Page(1), later))
	info, err := tier.Stat(ctx, tr, Page(1))
	require.NoError(t, err)
	require.True(t, later.Equal(info.Used))
	onDisk(tr, func(tr tier.Disk) {
		space, err := tr.Space(ctx)
		require.NoError(t, err)
		require.Positive(t, space.Free)
		require.Greater(t, space.Total, space.Free)
		before := time.Now()
		now, err := tr.Now(ctx)
		require.NoError(t, err)
		require.WithinRange(t, now, before.Add(-tier.ClockSlack), time.Now())
	})
}

func testAbort(t *testing.T, tr tier.Tier) {
	for _, sealed := range []bool{false, true} {
		up, err := tr.Create(ctx, Page(1))
		require.NoError(t, err)
		require.NoError(t, up.Write(ctx, []byte("half")))
		if sealed {
			require.NoError(t, up.Seal(ctx))
		}
		up.Abort()
		_, err = tier.Stat(ctx, tr, Page(1))
		require.ErrorIs(t, err, tier.ErrNotFound)
		require.Empty(t, listTier(t, tr))
		require.Eventually(t, func() bool { // an isolated tier discards in the background
			aside, err := tier.OnDisk(tr).Aside(ctx)
			return err == nil && aside.TempFiles == 0 && tier.OnDisk(tr).Left() == 0
		}, 10*time.Second, time.Millisecond)
	}
}

func testList(t *testing.T, tr tier.Tier) {
	now := time.Now()
	for n := range byte(20) {
		Upload(t, tr, Page(n), []byte("page"), now)
	}
	Upload(t, tr, Tail(30), []byte("tail"), now)
	Upload(t, tr, Tail(31), []byte("tail"), now)
	Upload(t, tr, Tail(32), []byte("tail"), now)
	Upload(t, tr, pagefile.Name{Fingerprint: Fingerprint, Class: pagefile.ClassManifest}, []byte("{}"), now)
	names := make(map[pagefile.Name]bool)
	for _, info := range listTier(t, tr) {
		require.False(t, names[info.Name], "a file is listed once")
		names[info.Name] = true
	}
	require.Len(t, names, 23)
	require.True(t, names[Page(7)] && names[Tail(30)] && names[Tail(32)])
	var ask []pagefile.Name
	for n := range byte(30) {
		ask = append(ask, Page(n))
	}
	infos, err := tier.Leading(ctx, tr, ask)
	require.NoError(t, err)
	require.Len(t, infos, 20)
	for i, info := range infos {
		require.Equal(t, ask[i], info.Name, "in the order of the names")
	}
	infos, err = tier.Leading(ctx, tr, append([]pagefile.Name{Page(99)}, ask...))
	require.NoError(t, err)
	require.Empty(t, infos)
	infos, err = tr.Find(ctx, []pagefile.Name{Page(99), Page(0), Tail(99), Tail(31)}, false)
	require.NoError(t, err)
	require.Len(t, infos, 4)
	require.False(t, infos[0].Found() || infos[2].Found(), "a missing file hides none after it")
	require.Equal(t, []pagefile.Name{Page(0), Tail(31)}, []pagefile.Name{infos[1].Name, infos[3].Name})
}

func testRemove(t *testing.T, tr tier.Tier) {
	Upload(t, tr, Tail(1), []byte("tail"), time.Now())
	for _, want := range []bool{true, false} {
		removed, err := tr.Remove(ctx, tier.Info{Name: Tail(1)})
		require.NoError(t, err)
		require.Equal(t, want, removed)
	}
	Upload(t, tr, Tail(1), []byte("tail"), time.Now())
	_, err := tier.Stat(ctx, tr, Tail(1))
	require.NoError(t, err)
}

func testQuarantine(t *testing.T, tr tier.Tier) {
	Upload(t, tr, Page(1), []byte("bad"), time.Now())
	for _, want := range []bool{true, false} {
		moved, err := tr.Quarantine(ctx, tier.Info{Name: Page(1)}, "test")
		require.NoError(t, err)
		require.Equal(t, want, moved)
	}
	_, err := tier.Stat(ctx, tr, Page(1))
	require.ErrorIs(t, err, tier.ErrNotFound)
	require.Empty(t, listTier(t, tr))
	onDisk(tr, func(tr tier.Disk) {
		aside, err := tr.Aside(ctx)
		require.NoError(t, err)
		require.Equal(t, 1, aside.QuarantineFiles, "a person looks at it")
		require.Positive(t, aside.QuarantineBytes)
		for _, want := range []int64{aside.QuarantineBytes, 0} {
			freed, err := tr.EmptyQuarantine(ctx)
			require.NoError(t, err)
			require.Equal(t, want, freed)
			aside, err = tr.Aside(ctx)
			require.NoError(t, err)
			require.Zero(t, aside.QuarantineFiles)
			require.Zero(t, aside.QuarantineBytes)
		}
	})
}

func testLock(t *testing.T, tr tier.Tier) {
	onDisk(tr, func(tr tier.Disk) {
		release, err := tr.Lock(ctx)
		require.NoError(t, err)
		require.NotNil(t, release)
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
	})
}

func testContext(t *testing.T, tr tier.Tier) {
	done, cancel := context.WithCancel(ctx)
	cancel()
	Upload(t, tr, Page(1), []byte("page"), time.Now())
	_, err := tier.Stat(done, tr, Page(1))
	require.ErrorIs(t, err, done.Err())
	_, _, err = tr.Survey(done)
	require.ErrorIs(t, err, done.Err())
	_, err = tr.ListShard(done, tier.ShardOf(Page(1)))
	require.ErrorIs(t, err, done.Err())
	_, err = tr.Create(done, Page(2))
	require.ErrorIs(t, err, done.Err())
	_, err = tier.Stat(ctx, tr, Page(1))
	require.NoError(t, err, "a caller that left says nothing about the tier")
}

// branch returns the branch of a page at a prefix; the page may not exist.
func branch(prefix, key byte) tier.Branch {
	return tier.Branch{
		Fingerprint: Fingerprint, Prefix: pagefile.Key{prefix, 7}, Class: pagefile.ClassPage,
		Key: pagefile.Key{key}, Tokens: 200, Leads: pagefile.Leads{prefix, 15: key},
	}
}

func testBranches(t *testing.T, tr tier.Tier) {
	list := func(prefix pagefile.Key, wantLonger bool) []tier.Branch {
		return listBranches(t, tr, prefix[:], wantLonger)
	}
	listAll := func(first byte, wantLonger bool) []tier.Branch {
		return listBranches(t, tr, []byte{first}, wantLonger)
	}
	all := []tier.Branch{branch(1, 1), branch(1, 2), branch(2, 1)}
	other, tail := branch(1, 1), branch(1, 1)
	other.Prefix[1] = 8
	tail.Class, tail.Tokens = pagefile.ClassTail, 1
	require.Empty(t, list(all[0].Prefix, false))
	require.Empty(t, listAll(1, false))
	require.NoError(t, tr.RemoveBranch(ctx, all[0]), "of a missing one")
	for i, b := range append(all, other, tail, all[0]) {
		require.NoError(t, tr.AddBranch(ctx, b, i%2 == 0))
	}
	require.ElementsMatch(t, append([]tier.Branch{other, tail}, all[:2]...), listAll(1, false), "at all prefixes that begin so")
	require.ElementsMatch(t, append([]tier.Branch{tail}, all[:2]...), list(all[0].Prefix, false), "at one prefix")
	require.Empty(t, listAll(3, false))
	require.NoError(t, tr.RemoveBranch(ctx, all[0]))
	require.NoError(t, tr.RemoveBranch(ctx, all[0]))
	require.ElementsMatch(t, []tier.Branch{other, tail, all[1]}, listAll(1, false))

	longer := tier.Branch{Fingerprint: Fingerprint, Prefix: all[2].Prefix, Longer: true}
	require.NoError(t, tr.AddBranch(ctx, longer, true))
	require.NoError(t, tr.AddBranch(ctx, longer, true))
	require.Equal(t, all[2:], list(all[2].Prefix, true))
	require.NoError(t, tr.RemoveBranch(ctx, all[2]))
	require.Empty(t, list(all[2].Prefix, true), "the mark stays")
	require.Empty(t, listAll(2, true))
	require.Empty(t, listTier(t, tr), "a branch is no page")
	require.ElementsMatch(t, []tier.Branch{other}, listBranches(t, tr, other.Prefix[:2], false), "at prefixes that begin with two bytes")
	for _, b := range []tier.Branch{other, tail, all[1], longer} {
		require.NoError(t, tr.RemoveBranch(ctx, b))
	}
	require.NoError(t, tier.OnDisk(tr).DropFolders(ctx, Fingerprint))
	require.Empty(t, listAll(1, false))
	require.Empty(t, list(all[2].Prefix, false))
	keys, _, err := tr.Survey(ctx)
	require.NoError(t, err)
	require.Empty(t, keys)
}

// listBranches lists the branches at prefixes that begin with some bytes, and checks whether one is
// marked Longer, which is left out.
func listBranches(t *testing.T, tr tier.Tier, prefix []byte, wantLonger bool) []tier.Branch {
	t.Helper()
	branches, err := tr.Branches(ctx, Fingerprint, prefix)
	require.NoError(t, err)
	all := len(branches)
	branches = slices.DeleteFunc(branches, func(b tier.Branch) bool { return b.Longer })
	require.Equal(t, wantLonger, len(branches) < all)
	return branches
}

func testFingerprints(t *testing.T, tr tier.Tier) {
	manifest := pagefile.Name{Fingerprint: Fingerprint, Class: pagefile.ClassManifest}
	Upload(t, tr, manifest, []byte("{}"), time.Now())
	Upload(t, tr, Page(1), []byte("page"), time.Now())
	keys, _, err := tr.Survey(ctx)
	require.NoError(t, err)
	require.Equal(t, []pagefile.Key{Fingerprint}, keys)
	drop := func() {
		_, err := tr.Remove(ctx, tier.Info{Name: manifest})
		require.NoError(t, err)
		require.NoError(t, tier.OnDisk(tr).DropFolders(ctx, Fingerprint))
	}
	drop()
	_, err = tier.Stat(ctx, tr, manifest)
	require.ErrorIs(t, err, tier.ErrNotFound)
	_, err = tier.Stat(ctx, tr, Page(1))
	require.NoError(t, err, "pages keep what holds them")
	_, err = tr.Remove(ctx, tier.Info{Name: Page(1)})
	require.NoError(t, err)
	drop()
	drop()
	keys, _, err = tr.Survey(ctx)
	require.NoError(t, err)
	require.Empty(t, keys)
}

// same compares two descriptions of one file.
func same(t *testing.T, want, got tier.Info, where string) {
	t.Helper()
	require.Truef(t, want.Used.Equal(got.Used), "%s tells %v, want %v", where, got.Used, want.Used)
	got.Used = want.Used
	require.Equal(t, want, got, where)
}

// testDescribe describes a page and a tail by every method that describes files.
func testDescribe(t *testing.T, tr tier.Tier) {
	content := bytes.Repeat([]byte("0123456789"), 2_000)
	used := time.Unix(1_700_000_000, 0)
	for _, name := range []pagefile.Name{Page(1), Tail(2)} {
		up, err := tr.Create(ctx, name)
		require.NoError(t, err)
		require.Zero(t, up.Written())
		for end := 5_000; end <= len(content); end += 5_000 {
			require.NoError(t, up.Write(ctx, content[end-5_000:end]))
			require.EqualValues(t, end, up.Written())
		}
		done, err := up.Commit(ctx, used)
		require.NoError(t, err)
		require.Positive(t, done.Physical, "a file that has bytes occupies space")
		same(t, tier.Info{Name: name, Bytes: int64(len(content)), Physical: done.Physical, Used: used}, done.Info, "Commit")
		described(t, tr, done.Info)

		again := Upload(t, tr, name, content[:10_000], used.Add(time.Second))
		require.True(t, again.Replaced)
		require.Equal(t, done.Physical, again.Freed)
		described(t, tr, again.Info)
		for _, anew := range []bool{false, true} {
			blob, err := tr.Open(ctx, name, anew)
			require.NoError(t, err)
			require.NotNil(t, blob)
			same(t, again.Info, blob.Info(), "Blob.Info")
			require.Equal(t, again.Bytes, blob.Size())
			got := make([]byte, blob.Size())
			require.NoError(t, blob.ReadAt(ctx, got, 0))
			require.Equal(t, content[:10_000], got)
			blob.Close()
		}
	}
	_, err := tr.Open(ctx, Page(9), true)
	require.ErrorIs(t, err, tier.ErrNotFound)
}

// described checks that all methods describe a page or tail in the same way.
func described(t *testing.T, tr tier.Tier, want tier.Info) {
	t.Helper()
	info, err := tier.Stat(ctx, tr, want.Name)
	require.NoError(t, err)
	same(t, want, info, "Stat")
	infos, err := tier.Leading(ctx, tr, []pagefile.Name{want.Name, Page(99)})
	require.NoError(t, err)
	require.Len(t, infos, 1)
	same(t, want, infos[0], "Leading")
	infos, err = tr.ListShard(ctx, tier.ShardOf(want.Name))
	require.NoError(t, err)
	require.Len(t, infos, 1)
	same(t, want, infos[0], "ListShard")
}

// testReplaced: Remove and Quarantine leave a file that has replaced the judged one.
func testReplaced(t *testing.T, tr tier.Tier) {
	used := time.Unix(1_700_000_000, 0)
	for _, other := range []struct {
		content string
		used    time.Time
	}{{"good", used}, {"odd", used.Add(time.Hour)}} { // another length, another time
		for _, name := range []pagefile.Name{Page(1), Tail(2)} {
			Upload(t, tr, name, []byte("bad"), used)
			judged, err := tier.Stat(ctx, tr, name)
			require.NoError(t, err)
			Upload(t, tr, name, []byte(other.content), other.used)
			removed, err := tr.Remove(ctx, judged)
			require.ErrorIs(t, err, tier.ErrReplaced)
			require.False(t, removed)
			moved, err := tr.Quarantine(ctx, judged, "test")
			require.NoError(t, err)
			require.False(t, moved)
			now, err := tier.Stat(ctx, tr, name)
			require.NoError(t, err)
			require.EqualValues(t, len(other.content), now.Bytes)
			removed, err = tr.Remove(ctx, now)
			require.NoError(t, err)
			require.True(t, removed)
		}
	}
}

func testAccount(t *testing.T, tr tier.Tier) {
	content, err := tr.Account(ctx, nil)
	require.NoError(t, err)
	require.Empty(t, content, "there is no ledger")
	ids := make(map[string]bool)
	for _, next := range []string{"first", "", "a longer one"} {
		var was []byte
		called := false
		before := content
		content, err = tr.Account(ctx, func(content []byte, id string) ([]byte, error) {
			called, was, ids[id] = true, bytes.Clone(content), true
			return []byte(next), nil
		})
		require.NoError(t, err)
		require.True(t, called, "change is called")
		require.Equal(t, string(before), string(was))
		require.Equal(t, next, string(content))
		content, err = tr.Account(ctx, nil)
		require.NoError(t, err)
		require.Equal(t, next, string(content), "what change made is kept")
	}
	refused := errors.New("refused")
	_, err = tr.Account(ctx, func([]byte, string) ([]byte, error) { return []byte("nothing"), refused })
	require.Equal(t, refused, err, "an error of change is returned as it is")
	content, err = tr.Account(ctx, nil)
	require.NoError(t, err)
	require.Equal(t, "a longer one", string(content), "and nothing has changed")
	require.Len(t, ids, 1, "a process has one id")
	for id := range ids {
		require.NotEmpty(t, id)
		onDisk(tr, func(tr tier.Disk) {
			aside, err := tr.Aside(ctx)
			require.NoError(t, err)
			require.True(t, aside.Living[id], "this process lives")
		})
	}
}

// testConcurrency runs rounds of all operations in several goroutines. Each goroutine has a
// page of its own, and all share one page.
func testConcurrency(t *testing.T, tr tier.Tier) {
	const goroutines, rounds = 4, 3
	content := bytes.Repeat([]byte("0123456789"), 1_000)
	var g errgroup.Group
	for n := range byte(goroutines) {
		g.Go(func() error {
			for range rounds {
				if err := oneRound(tr, Page(n), Page(goroutines), content); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	ledger, err := tr.Account(ctx, nil)
	require.NoError(t, err)
	require.Len(t, ledger, goroutines*rounds, "no change of the ledger is lost")
	infos := listTier(t, tr)
	require.Len(t, infos, 1)
	require.Equal(t, Page(goroutines), infos[0].Name)
}

// oneRound puts this goroutine's page and the shared page, reads both, and removes the first.
func oneRound(tr tier.Tier, own, shared pagefile.Name, content []byte) error {
	for _, name := range []pagefile.Name{own, shared} {
		up, err := tr.Create(ctx, name)
		if err != nil {
			return err
		}
		defer up.Abort()
		if err := up.Write(ctx, content); err != nil {
			return err
		}
		if _, err := up.Commit(ctx, time.Now()); err != nil {
			return err
		}
		if err := hasContent(tr, name, content); err != nil {
			return err
		}
	}
	if _, err := tr.Account(ctx, func(content []byte, _ string) ([]byte, error) {
		return append(bytes.Clone(content), 'x'), nil
	}); err != nil {
		return err
	}
	infos, err := tr.ListShard(ctx, tier.ShardOf(own))
	if err != nil {
		return err
	}
	if len(infos) != 1 || infos[0].Name != own {
		return fmt.Errorf("list of %v: %v", own.Key, infos)
	}
	if removed, err := tr.Remove(ctx, infos[0]); err != nil || !removed {
		return fmt.Errorf("remove %v: %v, %w", own.Key, removed, err)
	}
	if _, err := tier.Stat(ctx, tr, own); !errors.Is(err, tier.ErrNotFound) {
		return fmt.Errorf("stat of %v, which was removed: %w", own.Key, err)
	}
	return nil
}

// hasContent reads a whole file.
func hasContent(tr tier.Tier, name pagefile.Name, content []byte) error {
	blob, err := tr.Open(ctx, name, false)
	if err != nil {
		return err
	}
	defer blob.Close()
	if blob.Size() != int64(len(content)) {
		return fmt.Errorf("%v is %d bytes, want %d", name.Key, blob.Size(), len(content))
	}
	got := make([]byte, len(content))
	if err := blob.ReadAt(ctx, got, 0); err != nil {
		return err
	}
	if !bytes.Equal(got, content) {
		return fmt.Errorf("bytes of %v are not those that were written", name.Key)
	}
	return nil
}

// testClosed: every method of a tier fails after Close.
func testClosed(t *testing.T, tr tier.Tier) {
	t.Helper()
	name := Page(1)
	calls := map[string]func() error{
		"Find":             func() error { _, err := tr.Find(ctx, []pagefile.Name{name}, false); return err },
		"Find leading":     func() error { _, err := tr.Find(ctx, []pagefile.Name{name}, true); return err },
		"Open":             func() error { _, err := tr.Open(ctx, name, false); return err },
		"Open anew":        func() error { _, err := tr.Open(ctx, name, true); return err },
		"Create":           func() error { _, err := tr.Create(ctx, name); return err },
		"Touch":            func() error { return tr.Touch(ctx, name, time.Now()) },
		"Remove":           func() error { _, err := tr.Remove(ctx, tier.Info{Name: name}); return err },
		"Quarantine":       func() error { _, err := tr.Quarantine(ctx, tier.Info{Name: name}, "test"); return err },
		"Survey":           func() error { _, _, err := tr.Survey(ctx); return err },
		"ListShard":        func() error { _, err := tr.ListShard(ctx, tier.ShardOf(name)); return err },
		"AddBranch":        func() error { return tr.AddBranch(ctx, branch(1, 1), true) },
		"Branches":         func() error { _, err := tr.Branches(ctx, Fingerprint, []byte{1}); return err },
		"Branches at":      func() error { _, err := tr.Branches(ctx, Fingerprint, name.Key[:]); return err },
		"RemoveBranch":     func() error { return tr.RemoveBranch(ctx, branch(1, 1)) },
		"Account, reading": func() error { _, err := tr.Account(ctx, nil); return err },
		"Account": func() error {
			_, err := tr.Account(ctx, func(content []byte, _ string) ([]byte, error) { return content, nil })
			return err
		},
	}
	onDisk(tr, func(tr tier.Disk) {
		calls["Persist"] = func() error { return tr.Persist(ctx, name) }
		calls["SyncRemoved"] = func() error { return tr.SyncRemoved(ctx, []pagefile.Name{name}) }
		calls["DropFolders"] = func() error { return tr.DropFolders(ctx, Fingerprint) }
		calls["Aside"] = func() error { _, err := tr.Aside(ctx); return err }
		calls["EmptyQuarantine"] = func() error { _, err := tr.EmptyQuarantine(ctx); return err }
		calls["Space"] = func() error { _, err := tr.Space(ctx); return err }
		calls["Now"] = func() error { _, err := tr.Now(ctx); return err }
		calls["Lock"] = func() error { _, err := tr.Lock(ctx); return err }
	})
	for method, call := range calls {
		require.ErrorIs(t, call(), tier.ErrClosed, method)
	}
}
