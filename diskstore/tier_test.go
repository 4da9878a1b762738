package diskstore

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/tier/guard"
	"github.com/kvtier/kvtier/internal/vfs"
)

// TestTierContract runs one suite over every implementation of Tier.
func TestTierContract(t *testing.T) {
	local := func(t *testing.T) tier.Tier {
		return dir.New(vfs.OS, filepath.Join(t.TempDir(), "a", "root"), dir.Options{Create: true})
	}
	remote := func(t *testing.T) tier.Tier {
		root := filepath.Join(t.TempDir(), "root")
		require.NoError(t, os.Mkdir(root, 0o700))
		return guard.New(dir.New(vfs.OS, root, dir.Options{}), time.Minute, time.Minute,
			slog.New(slog.NewTextHandler(io.Discard, nil)), time.Now, func() {})
	}
	for name, open := range map[string]func(*testing.T) tier.Tier{"local": local, "remote": remote} {
		for test, run := range map[string]func(*testing.T, tier.Tier){
			"absent":      tierAbsent,
			"upload":      tierUpload,
			"abort":       tierAbort,
			"list":        tierList,
			"remove":      tierRemove,
			"quarantine":  tierQuarantine,
			"lock":        tierLock,
			"context":     tierContext,
			"fingerprint": tierFingerprints,
		} {
			t.Run(name+"/"+test, func(t *testing.T) {
				tr := open(t)
				run(t, tr)
				require.NoError(t, tr.Close())
				_, err := tr.Stat(ctx, tierPage(1))
				require.ErrorIs(t, err, tier.ErrClosed)
			})
		}
	}
}

func tierPage(n byte) pagefile.Name {
	return pagefile.Name{Fingerprint: testFingerprint(1), Class: pagefile.ClassPage, Key: pagefile.Key{n}}
}

func tierTail(parent, n byte) pagefile.Name {
	return pagefile.Name{Fingerprint: testFingerprint(1), Class: pagefile.ClassTail, Parent: pagefile.Key{parent}, Key: pagefile.Key{n}}
}

// upload stores content under a name.
func upload(t *testing.T, tier tier.Tier, name pagefile.Name, content []byte, used time.Time) tier.Committed {
	t.Helper()
	up, err := tier.Create(ctx, name)
	require.NoError(t, err)
	defer up.Abort()
	for part := range bytes.SplitSeq(content, nil) {
		require.NoError(t, up.Write(ctx, part))
	}
	done, err := up.Commit(ctx, used)
	require.NoError(t, err)
	return done
}

func tierAbsent(t *testing.T, tr tier.Tier) {
	_, err := tr.Stat(ctx, tierPage(1))
	require.ErrorIs(t, err, tier.ErrNotFound)
	_, err = tr.Open(ctx, tierPage(1))
	require.ErrorIs(t, err, tier.ErrNotFound)
	require.ErrorIs(t, tr.Touch(ctx, tierPage(1), time.Now()), tier.ErrNotFound)
	removed, err := tr.Remove(ctx, tier.Info{Name: tierPage(1)})
	require.NoError(t, err)
	require.False(t, removed)
	moved, err := tr.Quarantine(ctx, tier.Info{Name: tierPage(1)}, "test")
	require.NoError(t, err)
	require.False(t, moved)
	infos, err := tr.Leading(ctx, []pagefile.Name{tierPage(1)})
	require.NoError(t, err)
	require.Empty(t, infos)
	infos, err = tr.Tails(ctx, testFingerprint(1), pagefile.Key{1})
	require.NoError(t, err)
	require.Empty(t, infos)
	require.Empty(t, listTier(t, tr))
	require.NoError(t, tr.SyncRemoved(ctx, []pagefile.Name{tierPage(1), tierTail(1, 1)}))
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

func tierUpload(t *testing.T, tr tier.Tier) {
	content := bytes.Repeat([]byte("0123456789"), 20_000)
	used := time.Unix(1_700_000_000, 0)
	up, err := tr.Create(ctx, tierPage(1))
	require.NoError(t, err)
	require.NoError(t, up.Write(ctx, content[:5]))
	require.NoError(t, up.Write(ctx, content[5:]))
	_, err = tr.Stat(ctx, tierPage(1))
	require.ErrorIs(t, err, tier.ErrNotFound, "nothing is visible before Commit")
	done, err := up.Commit(ctx, used)
	require.NoError(t, err)
	up.Abort() // does nothing now
	require.False(t, done.Replaced)
	require.NoError(t, tr.Persist(ctx, tierPage(1)))

	info, err := tr.Stat(ctx, tierPage(1))
	require.NoError(t, err)
	require.Equal(t, tierPage(1), info.Name)
	require.EqualValues(t, len(content), info.Bytes)
	require.Equal(t, done.Physical, info.Physical)
	require.True(t, used.Equal(info.Used))

	blob, err := tr.Open(ctx, tierPage(1))
	require.NoError(t, err)
	require.EqualValues(t, len(content), blob.Info().Bytes)
	got := make([]byte, len(content)-3)
	require.NoError(t, blob.ReadAt(ctx, got, 3))
	require.Equal(t, content[3:], got)
	require.Error(t, blob.ReadAt(ctx, got, 4), "the file ends first")
	blob.Close()

	again := upload(t, tr, tierPage(1), content, used)
	require.True(t, again.Replaced)
	later := used.Add(time.Hour)
	require.NoError(t, tr.Touch(ctx, tierPage(1), later))
	info, err = tr.Stat(ctx, tierPage(1))
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

func tierAbort(t *testing.T, tr tier.Tier) {
	up, err := tr.Create(ctx, tierPage(1))
	require.NoError(t, err)
	require.NoError(t, up.Write(ctx, []byte("half")))
	up.Abort()
	_, err = tr.Stat(ctx, tierPage(1))
	require.ErrorIs(t, err, tier.ErrNotFound)
	require.Empty(t, listTier(t, tr))
}

func tierList(t *testing.T, tier tier.Tier) {
	now := time.Now()
	for n := range byte(20) {
		upload(t, tier, tierPage(n), []byte("page"), now)
	}
	upload(t, tier, tierTail(1, 30), []byte("tail"), now)
	upload(t, tier, tierTail(1, 31), []byte("tail"), now)
	upload(t, tier, tierTail(2, 32), []byte("tail"), now)
	upload(t, tier, pagefile.Name{Fingerprint: testFingerprint(1), Class: pagefile.ClassManifest}, []byte("{}"), now)
	names := make(map[pagefile.Name]bool)
	for _, info := range listTier(t, tier) {
		names[info.Name] = true
	}
	require.Len(t, names, 23)
	require.True(t, names[tierPage(7)] && names[tierTail(1, 30)] && names[tierTail(2, 32)])
	tails, err := tier.Tails(ctx, testFingerprint(1), pagefile.Key{1})
	require.NoError(t, err)
	require.Len(t, tails, 2)
	var ask []pagefile.Name
	for n := range byte(30) {
		ask = append(ask, tierPage(n))
	}
	infos, err := tier.Leading(ctx, ask)
	require.NoError(t, err)
	require.Len(t, infos, 20)
	infos, err = tier.Leading(ctx, append([]pagefile.Name{tierPage(99)}, ask...))
	require.NoError(t, err)
	require.Empty(t, infos)
}

func tierRemove(t *testing.T, tr tier.Tier) {
	upload(t, tr, tierTail(1, 1), []byte("tail"), time.Now())
	for _, want := range []bool{true, false} {
		removed, err := tr.Remove(ctx, tier.Info{Name: tierTail(1, 1)})
		require.NoError(t, err)
		require.Equal(t, want, removed)
	}
	upload(t, tr, tierTail(1, 1), []byte("tail"), time.Now()) // its directory went with it
	_, err := tr.Stat(ctx, tierTail(1, 1))
	require.NoError(t, err)
}

func tierQuarantine(t *testing.T, tr tier.Tier) {
	upload(t, tr, tierPage(1), []byte("bad"), time.Now())
	for _, want := range []bool{true, false} {
		moved, err := tr.Quarantine(ctx, tier.Info{Name: tierPage(1)}, "test")
		require.NoError(t, err)
		require.Equal(t, want, moved)
	}
	_, err := tr.Stat(ctx, tierPage(1))
	require.ErrorIs(t, err, tier.ErrNotFound)
	require.Empty(t, listTier(t, tr))
}

func tierLock(t *testing.T, tr tier.Tier) {
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

func tierContext(t *testing.T, tr tier.Tier) {
	done, cancel := cancelled()
	defer cancel()
	upload(t, tr, tierPage(1), []byte("page"), time.Now())
	_, err := tr.Stat(done, tierPage(1))
	require.ErrorIs(t, err, done.Err())
	_, err = tr.Shards(done)
	require.ErrorIs(t, err, done.Err())
	_, err = tr.ListShard(done, tier.ShardOf(tierPage(1)))
	require.ErrorIs(t, err, done.Err())
	_, err = tr.Create(done, tierPage(2))
	require.ErrorIs(t, err, done.Err())
	_, err = tr.Stat(ctx, tierPage(1))
	require.NoError(t, err, "a caller that left says nothing about the tier")
}

func tierFingerprints(t *testing.T, tr tier.Tier) {
	manifest := pagefile.Name{Fingerprint: testFingerprint(1), Class: pagefile.ClassManifest}
	upload(t, tr, manifest, []byte("{}"), time.Now())
	upload(t, tr, tierPage(1), []byte("page"), time.Now())
	keys, err := tr.Fingerprints(ctx)
	require.NoError(t, err)
	require.Equal(t, []pagefile.Key{testFingerprint(1)}, keys)
	require.NoError(t, tr.DropFingerprint(ctx, testFingerprint(1)))
	_, err = tr.Stat(ctx, manifest)
	require.ErrorIs(t, err, tier.ErrNotFound)
	_, err = tr.Stat(ctx, tierPage(1))
	require.NoError(t, err, "pages keep what holds them")
	_, err = tr.Remove(ctx, tier.Info{Name: tierPage(1)})
	require.NoError(t, err)
	require.NoError(t, tr.DropFingerprint(ctx, testFingerprint(1)))
	require.NoError(t, tr.DropFingerprint(ctx, testFingerprint(1)))
	keys, err = tr.Fingerprints(ctx)
	require.NoError(t, err)
	require.Empty(t, keys)
}

func TestStaleTemporaryFilesAreCleaned(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	alive := dir.New(vfs.OS, root, dir.Options{Create: true})
	living, err := alive.Create(ctx, tierPage(1))
	require.NoError(t, err)
	defer func() {
		living.Abort()
		require.NoError(t, alive.Close())
	}()
	tmp := filepath.Join(root, dir.VersionDir, dir.TmpDir)
	dead := filepath.Join(tmp, "00dead-1.tmp")
	for _, path := range []string{dead, filepath.Join(tmp, "00dead.lock"), filepath.Join(tmp, "0old-1.tmp"), filepath.Join(tmp, "0new-1.tmp")} {
		require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
	}
	past := time.Now().Add(-2 * dir.OrphanAge)
	require.NoError(t, os.Chtimes(filepath.Join(tmp, "0old-1.tmp"), past, past))

	next := dir.New(vfs.OS, root, dir.Options{Create: true})
	_, err = next.Temp.Claim()
	require.NoError(t, err)
	left := filesIn(t, tmp, dir.TmpExt)
	require.Len(t, left, 2, "what is alive and what cannot be told apart from it stays: %v", left)
	require.NoFileExists(t, dead)
	require.NoError(t, next.Close())
	require.Len(t, filesIn(t, tmp, dir.LockExt), 1)
}

func TestRoots(t *testing.T) {
	folder := t.TempDir()
	mk := func(name string, mode os.FileMode) string {
		path := filepath.Join(folder, name)
		require.NoError(t, os.Mkdir(path, 0o700))
		require.NoError(t, os.Chmod(path, mode))
		return path
	}
	good := mk("good", 0o755)
	link := filepath.Join(folder, "link")
	require.NoError(t, os.Symlink(good, link))
	file := filepath.Join(folder, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	cases := map[string]error{
		good: nil, link: tier.ErrRootSymlink, link + "/": tier.ErrRootSymlink, file: tier.ErrRootNotDir,
		mk("group", 0o770): tier.ErrRootMode, mk("world", 0o702): tier.ErrRootMode, filepath.Join(folder, "none"): os.ErrNotExist,
	}
	if os.Geteuid() == 0 {
		foreign := mk("foreign", 0o700)
		require.NoError(t, os.Chown(foreign, 12345, -1))
		cases[foreign] = tier.ErrRootOwner
	}
	for path, want := range cases {
		require.ErrorIs(t, dir.CheckRoot(vfs.OS, path), want, path)
		if want == nil || want == os.ErrNotExist {
			continue
		}
		_, err := Open(ctx, testOptions(t, func(o *Options) { o.Local.Root = path }))
		require.ErrorIs(t, err, want)
		_, err = Open(ctx, testOptions(t, func(o *Options) { o.Remote.Root = path }))
		require.ErrorIs(t, err, want)
	}
}

func TestIsRAM(t *testing.T) {
	info, err := os.Stat("/dev/shm")
	if err != nil || !info.IsDir() {
		t.Skip("no /dev/shm here")
	}
	ram, err := dir.IsRAM("/dev/shm/kvtier/not/there")
	require.NoError(t, err)
	require.True(t, ram)
}

// TestWhatIsGivenUpLeavesNothingAfterClose closes a tier while an operation on it
// waits, as one that an isolated tier has given up does. When it goes on it must
// not make a temporary file: the lock that stood for it is gone, and the next
// process would take it for the file of a system without locks.
func TestWhatIsGivenUpLeavesNothingAfterClose(t *testing.T) {
	for name, tc := range map[string]struct {
		op vfs.Op // where it waits
		do func(tier *dir.Tier) error
	}{
		"the first change of a ledger": {vfs.OpLock, func(tier *dir.Tier) error {
			_, err := tier.Account(ctx, func(old []byte, _ string) ([]byte, error) { return old, nil })
			return err
		}},
		"a change of a ledger": {vfs.OpOpen, func(tier *dir.Tier) error {
			_, err := tier.Account(ctx, func(old []byte, _ string) ([]byte, error) { return old, nil })
			return err
		}},
		"an upload": {vfs.OpCreate, func(tier *dir.Tier) error {
			up, err := tier.Create(ctx, tierPage(1))
			if err != nil {
				return err
			}
			defer up.Abort()
			_, err = up.Commit(ctx, time.Now())
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newCrashWorld(t)
			tier := dir.New(w.inj, w.o.Local.Root, dir.Options{Create: true})
			_, err := tier.Account(ctx, func(old []byte, _ string) ([]byte, error) { return old, nil })
			require.NoError(t, err)
			if name == "the first change of a ledger" {
				require.NoError(t, tier.Close())
				tier = dir.New(w.inj, w.o.Local.Root, dir.Options{Create: true})
			}
			gate := vfs.NewGate()
			w.inj.Add(vfs.Rule{Ops: []vfs.Op{tc.op}, Nth: 1, Gate: gate})
			done := make(chan error, 1)
			go func() { done <- tc.do(tier) }()
			<-gate.Entered()
			var unlocked []string
			w.inj.Watch(func(op vfs.Op, paths ...string) {
				if op == vfs.OpWrite || op == vfs.OpSync {
					found, err := walk(w.mem, w.o.Local.Root)
					if err != nil || len(found.temps) > 0 && len(found.locks) < 2 { // usage.lock and its own
						unlocked = append(unlocked, paths[0])
					}
				}
			})
			closed := make(chan error, 1)
			go func() { closed <- tier.Close() }()
			if tc.op == vfs.OpOpen {
				require.NoError(t, <-closed)
				closed <- nil
			}
			gate.Open()
			require.NoError(t, <-closed)
			<-done // it may have been in time
			w.inj.Watch(nil)
			require.Empty(t, unlocked)
			found, err := walk(w.mem, w.o.Local.Root)
			require.NoError(t, err)
			require.Empty(t, found.temps)
			require.Len(t, found.locks, 1, "%v", found.locks)
		})
	}
}
