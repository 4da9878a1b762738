package diskstore

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/internal/vfs"
)

// TestLiveUploadIsNoOrphan: another machine counts while a page, last used long
// ago, is on its way to the disk. Locks fail, or belong to each machine.
func TestLiveUploadIsNoOrphan(t *testing.T) {
	for _, noLocks := range []bool{true, false} {
		for _, ahead := range clockOffsets {
			sh, root := newShare(ahead), privateDir(t)
			sh.noLocks = noLocks
			inj := vfs.Inject(sh.from("a"))
			gate := vfs.NewGate()
			inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpSync}, Path: regexp.MustCompile(`-\d+\.tmp$`), Gate: gate})
			a, b := sharedTier(t, inj, root), sharedTier(t, sh.from("b"), root)
			up, err := a.Create(ctx, pagefile.Name{Fingerprint: testFingerprint(1), Class: pagefile.ClassPage, Key: pagefile.Key{1}})
			require.NoError(t, err)
			require.NoError(t, up.Write(ctx, make([]byte, 4096)))
			used := time.Now().Add(-2 * time.Hour).Truncate(time.Second)
			result := make(chan error, 1)
			go func() {
				_, err := up.Commit(ctx, used)
				result <- err
			}()
			<-gate.Entered()
			_, err = b.Aside(ctx)
			require.NoError(t, err)
			_, _ = b.Temp.Claim() // which sweeps as well
			gate.Open()
			require.NoError(t, <-result, "no locks %v, server ahead by %v", noLocks, ahead)
			info, err := a.Stat(ctx, pagefile.Name{Fingerprint: testFingerprint(1), Class: pagefile.ClassPage, Key: pagefile.Key{1}})
			require.NoError(t, err)
			require.True(t, used.Equal(info.Used))
		}
	}
}

// TestFilesOfDeadMachinesGo after an hour by the server's clock, whatever this
// machine's shows, and their lock files a day after that.
func TestFilesOfDeadMachinesGo(t *testing.T) {
	for _, noLocks := range []bool{true, false} {
		for _, ahead := range clockOffsets {
			sh, root := newShare(ahead), privateDir(t)
			sh.noLocks = noLocks
			a := dir.New(sh.from("a"), root, dir.Options{})
			a.Shared = true
			_, err := a.Create(ctx, pagefile.Name{Fingerprint: testFingerprint(1), Class: pagefile.ClassPage, Key: pagefile.Key{1}})
			require.NoError(t, err)
			sh.die("a")
			age := func(by time.Duration) {
				for _, path := range append(filesIn(t, root, dir.TmpExt), filepath.Join(a.Temp.Dir, a.Temp.ID+dir.LockExt)) {
					when := time.Now().Add(-by)
					require.NoError(t, os.Chtimes(path, when, when))
				}
			}
			b := sharedTier(t, sh.from("b"), root)
			for _, step := range []struct {
				age         time.Duration
				temps, lock bool
			}{{0, true, true}, {dir.OrphanAge - time.Minute, true, true}, {dir.OrphanAge + time.Minute, false, true}, {dir.LockAge + time.Minute, false, false}} {
				age(step.age)
				_, err = b.Temp.Claim()
				if err != nil {
					require.ErrorIs(t, err, tier.ErrNotShared)
					b.Temp.Refused = time.Time{}
				}
				aside, err := b.Aside(ctx)
				require.NoError(t, err)
				require.Equal(t, step.temps, len(filesIn(t, root, dir.TmpExt)) > 0, "%v", step)
				require.Equal(t, step.lock, aside.Living[a.Temp.ID], "%v", step)
				if !step.lock {
					break
				}
			}
		}
	}
}

// TestLocksOfOneSystemStillTellAtOnce: a process that was killed is dead to those
// beside it, also on a share.
func TestLocksOfOneSystemStillTellAtOnce(t *testing.T) {
	sh, root := newShare(0), privateDir(t)
	a := dir.New(sh.from("a"), root, dir.Options{})
	a.Shared = true
	_, err := a.Create(ctx, pagefile.Name{Fingerprint: testFingerprint(1), Class: pagefile.ClassPage, Key: pagefile.Key{1}})
	require.NoError(t, err)
	sh.die("a")
	b := sharedTier(t, sh.from("a"), root)
	_, err = b.Temp.Claim()
	require.NoError(t, err)
	require.Empty(t, filesIn(t, root, dir.TmpExt))
	require.Len(t, filesIn(t, root, dir.LockExt), 1)
}

// TestIDNamesTheMountOfTheDay: a directory was mounted again, and the device number
// that it had is another mount's, perhaps.
func TestIDNamesTheMountOfTheDay(t *testing.T) {
	sh := newShare(0)
	a := sharedTier(t, sh.from("mount1"), privateDir(t))
	for _, mount := range []string{"mount1", "mount2"} {
		a.FS = sh.from(mount)
		id, err := a.Temp.Claim()
		require.NoError(t, err)
		require.Contains(t, id, mount)
		require.NoError(t, a.Temp.LeaveLocked())
	}
}

// TestOneMachineWritesWhereLocksDoNotReach: the second reads, and says once what to
// do about it.
func TestOneMachineWritesWhereLocksDoNotReach(t *testing.T) {
	for _, reach := range []vfs.Reach{vfs.ReachHost, vfs.ReachDisk, vfs.ReachAll} {
		sh := newShare(time.Hour)
		sh.reach = reach
		var log strings.Builder
		on := func(host string) Options {
			o := testOptions(t, withFS(sh.from(host)), withRemote(t))
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
			return o
		}
		oa, ob, beside := on("a"), on("b"), on("a")
		ob.Remote, beside.Remote = oa.Remote, oa.Remote
		a := open(t, oa)
		inRemote(t, a, 2)
		require.NoError(t, a.Flush(ctx))

		a2 := open(t, beside) // another process of the same machine
		inRemote(t, a2, 3)

		b := open(t, ob)
		readChain(t, b, prompt(0, testTokens), testTokens)
		p := putChain(t, b, prompt(9, testTokens))[0]
		info, err := b.disk.Stat(ctx, b.pageName(p.Key()))
		require.NoError(t, err)
		err = b.demote(ctx, info)
		if reach == vfs.ReachAll {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, tier.ErrNotShared)
		require.ErrorIs(t, b.demote(ctx, info), tier.ErrNotShared)
		_, err = b.guard.Lock(ctx)
		require.ErrorIs(t, err, tier.ErrLocked)
		require.False(t, b.Stats().Remote.Down)
		require.Equal(t, 1, strings.Count(log.String(), "is only read"), "%s", log.String())
		require.Equal(t, reach == vfs.ReachHost, strings.Contains(log.String(), "do not reach other machines"))

		require.NoError(t, a.Close())
		require.NoError(t, a2.Close())
		b.guard.Inner.(*dir.Tier).Temp.Refused = time.Now().Add(-dir.BeatEvery)
		require.NoError(t, b.demote(ctx, info))
		require.Equal(t, 1, strings.Count(log.String(), "may be written again"))
	}
}

// TestOwnRestartIsNoOtherMachine: a machine loses power while it writes, and is back
// two minutes later, when its last write was three minutes ago. Its second directory
// is its own. Nobody waits where nobody else can be meant: a copy of the machine, with
// the same name, may live all the same.
func TestOwnRestartIsNoOtherMachine(t *testing.T) {
	const wrote = 3 * time.Minute
	for name, c := range map[string]struct {
		before, after string // names of the machine
		up            time.Duration
		writes        bool
	}{
		"own restart":             {"m", "m", wrote - time.Minute, true},
		"it was up at the time":   {"m", "m", wrote + time.Minute, false},
		"another machine":         {"m", "other", wrote - time.Minute, false},
		"without names":           {"", "", wrote - time.Minute, false},
		"the first without names": {"", "m", wrote - time.Minute, false},
	} {
		for _, ahead := range clockOffsets {
			t.Run(fmt.Sprint(name, " ", ahead), func(t *testing.T) {
				sh, root := newShare(ahead), privateDir(t)
				sh.reach = vfs.ReachDisk
				sh.machine = map[string]string{"boot1": c.before, "boot2": c.after}
				sh.up = map[string]time.Duration{"boot1": 10 * wrote, "boot2": c.up}
				page := pagefile.Name{Fingerprint: testFingerprint(1), Class: pagefile.ClassPage, Key: pagefile.Key{1}}
				a := dir.New(sh.from("boot1"), root, dir.Options{})
				a.Shared = true
				_, err := a.Create(ctx, page)
				require.NoError(t, err)
				sh.die("boot1")
				when := time.Now().Add(-wrote)
				lock := filepath.Join(a.Temp.Dir, a.Temp.ID+dir.LockExt)
				left := filesIn(t, root, dir.TmpExt)
				require.Len(t, left, 1)
				for _, path := range []string{lock, left[0]} {
					require.NoError(t, os.Chtimes(path, when, when))
				}
				b := sharedTier(t, sh.from("boot2"), root)
				_, err = b.Create(ctx, page)
				if !c.writes {
					require.ErrorIs(t, err, tier.ErrNotShared)
					return
				}
				require.NoError(t, err)
				require.FileExists(t, left[0], "it stays for an hour")

				// It was a copy of the machine, and goes on.
				require.NoError(t, os.Chtimes(lock, time.Now(), time.Now()))
				b.Temp.Beat = time.Now().Add(-dir.BeatEvery)
				_, err = b.Create(ctx, page)
				require.ErrorIs(t, err, tier.ErrNotShared)
			})
		}
	}
}

// TestClaimOfAnEarlierBootGoes: a machine loses power while it has room claimed in a
// share, and gives it back when its next server starts. What may be another machine's
// stays. It was a copy, perhaps, that slept: then it claims anew.
func TestClaimOfAnEarlierBootGoes(t *testing.T) {
	const up = 10 * time.Minute
	page := physicalPage(t)
	for name, c := range map[string]struct {
		before, after string // names of the machine
		up, idle      time.Duration
		gone          bool
	}{
		"own restart":             {"m", "m", up, up + time.Minute, true},
		"it was up at the time":   {"m", "m", up, up - time.Minute, false},
		"it may only have paused": {"m", "m", time.Minute, dir.BeatAge - time.Minute, false},
		"another machine":         {"m", "other", up, up + time.Minute, false},
		"without names":           {"", "", up, up + time.Minute, false},
	} {
		for _, ahead := range clockOffsets {
			t.Run(fmt.Sprint(name, " ", ahead), func(t *testing.T) {
				sh := newShare(ahead)
				sh.reach = vfs.ReachAll
				sh.machine = map[string]string{"boot1": c.before, "boot2": c.after}
				sh.up = map[string]time.Duration{"boot1": time.Hour, "boot2": c.up}
				o := testOptions(t, withFS(sh.from("boot1")), withRemote(t), func(o *Options) { o.Remote.BudgetBytes = 200 * page })
				a := open(t, o)
				inRemote(t, a, 3)
				require.NoError(t, a.Flush(ctx))
				room, err := a.remote.book.Reserve(ctx, page) // it dies before its next Flush
				require.NoError(t, err)
				room.Cancel()
				temp := &a.guard.Inner.(*dir.Tier).Temp
				id := temp.ID
				file, left, err := temp.Create("")
				require.NoError(t, err)
				require.NoError(t, file.Close())
				sh.die("boot1")
				when := time.Now().Add(-c.idle)
				for _, path := range []string{left, filepath.Join(temp.Dir, id+dir.LockExt)} {
					require.NoError(t, os.Chtimes(path, when, when))
				}

				root := Options{Local: o.Remote}
				require.Contains(t, readLedgerFile(t, root).Claims, id)
				o.FS, o.Local.Root = sh.from("boot2"), filepath.Join(t.TempDir(), "local")
				b := open(t, o)
				require.Equal(t, !c.gone, readLedgerFile(t, root).Claims[id] != ledger.Claim{})
				require.FileExists(t, left, "it stays for an hour")
				require.LessOrEqual(t, occupied(t, o.Remote.Root), recorded(t, o.Remote.Root))

				temp.Beat = time.Now().Add(-dir.BeatEvery)
				putChain(t, a, prompt(9, testTokens))
				for _, info := range listAll(t, a.local) {
					require.NoError(t, a.demote(ctx, info))
				}
				room, err = a.remote.book.Reserve(ctx, 4*page) // more than a claim leaves over
				require.NoError(t, err)
				room.Cancel()
				require.Equal(t, c.gone, temp.ID != id)
				require.Contains(t, readLedgerFile(t, root).Claims, temp.ID)
				require.LessOrEqual(t, occupied(t, o.Remote.Root), recorded(t, o.Remote.Root))
				require.NoError(t, b.Flush(ctx))
			})
		}
	}
}

// TestLivingClaimBeats: a process that goes on writing touches its lock file, so that
// no other machine takes it for one that stopped, and claims anew when that is gone.
func TestLivingClaimBeats(t *testing.T) {
	sh, root := newShare(0), privateDir(t)
	a, b := sharedTier(t, sh.from("a"), root), sharedTier(t, sh.from("b"), root)
	id, err := a.Temp.Claim()
	require.NoError(t, err)
	lock := filepath.Join(a.Temp.Dir, id+dir.LockExt)
	old := time.Now().Add(-2 * dir.BeatAge)
	require.NoError(t, os.Chtimes(lock, old, old))
	a.Temp.Beat = time.Now().Add(-dir.BeatEvery)
	again, err := a.Temp.Claim()
	require.NoError(t, err)
	require.Equal(t, id, again)
	_, err = b.Temp.Claim()
	require.ErrorIs(t, err, tier.ErrNotShared, "it was seen a moment ago")

	require.NoError(t, os.Remove(lock))
	a.Temp.Beat = time.Now().Add(-dir.BeatEvery)
	again, err = a.Temp.Claim()
	require.NoError(t, err)
	require.NotEqual(t, id, again)
	require.FileExists(t, filepath.Join(a.Temp.Dir, again+dir.LockExt))
}

// TestLockFilesDoNotPileUp where locks fail: each process that ends removes its
// own.
func TestLockFilesDoNotPileUp(t *testing.T) {
	sh := newShare(0)
	sh.noLocks = true
	o := testOptions(t, withFS(sh.from("a")))
	for range 10 {
		s, err := Open(ctx, o)
		require.NoError(t, err)
		require.NoError(t, s.Put(ctx, pageOf(t, s.opt.Fingerprint, 0, prompt(1, testTokens))))
		require.NoError(t, s.Close())
	}
	s := open(t, o)
	aside, err := s.disk.Aside(ctx)
	require.NoError(t, err)
	require.Len(t, aside.Living, 1)
	require.Len(t, filesIn(t, filepath.Join(o.Local.Root, dir.VersionDir, dir.TmpDir), dir.LockExt), 1)
}

// TestLookingAtALockMakesNone: a process ends while another machine looks whether it
// lives. What that machine would make anew would stand for a machine that writes.
func TestLookingAtALockMakesNone(t *testing.T) {
	for _, noLocks := range []bool{true, false} {
		sh, root := newShare(0), privateDir(t)
		sh.noLocks = noLocks
		a := dir.New(sh.from("a"), root, dir.Options{})
		a.Shared = true
		id, err := a.Temp.Claim()
		require.NoError(t, err)
		inj := vfs.Inject(sh.from("b"))
		var once sync.Once
		inj.Watch(func(op vfs.Op, paths ...string) {
			if op == vfs.OpLock && filepath.Base(paths[0]) == id+dir.LockExt {
				once.Do(func() { require.NoError(t, a.Close()) })
			}
		})
		b := sharedTier(t, inj, root)
		_, err = b.Temp.Claim()
		require.NoError(t, err, "it is alone on the share")
		require.NoFileExists(t, filepath.Join(a.Temp.Dir, id+dir.LockExt))
	}
}

// TestTimesOfTheKeeperAlone: two machines whose clocks differ from the server's, and
// who give a file that they touch their own time. Each sees that the other lives, and
// what the server's clock shows.
func TestTimesOfTheKeeperAlone(t *testing.T) {
	for _, noLocks := range []bool{true, false} {
		for _, ahead := range clockOffsets {
			sh, root := newShare(ahead), privateDir(t)
			sh.noLocks = noLocks
			a, b := sharedTier(t, sh.from("a"), root), sharedTier(t, sh.from("b"), root)
			id, err := a.Temp.Claim()
			require.NoError(t, err)
			old := time.Now().Add(-2 * dir.LockAge)
			require.NoError(t, os.Chtimes(filepath.Join(a.Temp.Dir, id+dir.LockExt), old, old))
			for range 2 { // also when there is an earlier beat
				a.Temp.Beat = time.Now().Add(-dir.BeatEvery)
				again, err := a.Temp.Claim()
				require.NoError(t, err)
				require.Equal(t, id, again)
			}
			beats := filesIn(t, root, dir.TmpExt)
			require.Len(t, beats, 1)
			b.Temp.Refused = time.Time{}
			_, err = b.Temp.Claim()
			require.ErrorIs(t, err, tier.ErrNotShared, "server ahead by %v", ahead)
			require.Equal(t, beats, filesIn(t, root, dir.TmpExt))
			for _, tier := range []*dir.Tier{a, b} {
				now, err := tier.Now(ctx)
				require.NoError(t, err)
				require.Less(t, time.Until(now).Abs()-ahead.Abs(), time.Minute)
				require.Greater(t, time.Until(now).Abs()-ahead.Abs(), -time.Minute)
			}
			require.NoError(t, a.Close())
			require.Empty(t, filesIn(t, root, dir.TmpExt))
		}
	}
}

// slept returns now as it was before this machine slept for a while: the monotonic clock
// has stood still. The upper bits of a Time's first word are its seconds.
func slept(d time.Duration) time.Time {
	at := time.Now()
	*(*uint64)(unsafe.Pointer(&at)) -= uint64(d/time.Second) << 30
	return at
}

// TestSleepCountsForOthers: this machine slept. Others may have taken it for one that
// stopped, and its claims for those of a dead process.
func TestSleepCountsForOthers(t *testing.T) {
	require.Less(t, time.Since(slept(time.Hour)), time.Minute)
	require.Greater(t, time.Now().Round(0).Sub(slept(time.Hour)), 59*time.Minute)

	s := open(t, testOptions(t))
	putChain(t, s, prompt(1, testTokens))
	b := s.local.book
	free := func() int64 {
		b.Mu.Lock()
		defer b.Mu.Unlock()
		return b.FreeLocked()
	}
	require.Positive(t, free())
	b.Mu.Lock()
	b.Updated = slept(tier.ClaimLife)
	b.Mu.Unlock()
	require.Zero(t, free())

	sh := newShare(0)
	a := sharedTier(t, sh.from("a"), privateDir(t))
	_, err := a.Temp.Claim()
	require.NoError(t, err)
	a.Temp.Beat = slept(dir.BeatEvery)
	_, err = a.Temp.Claim()
	require.NoError(t, err)
	require.Len(t, filesIn(t, a.Root, dir.TmpExt), 1, "it has shown that it lives")
}
