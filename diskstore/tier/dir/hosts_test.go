package dir

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/ledger"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// sharedTier returns the tier in root as seen by one machine.
func sharedTier(t *testing.T, fsys vfs.FS, root string) *Tier {
	tier := New(fsys, root, Options{})
	tier.shared = true
	t.Cleanup(func() { require.NoError(t, tier.Close()) })
	return tier
}

// TestLiveUploadIsNoOrphan: another machine counts while a page, last used long ago, is being
// written. Locks fail, or stay on each machine.
func TestLiveUploadIsNoOrphan(t *testing.T) {
	for _, noLocks := range []bool{true, false} {
		for _, ahead := range storetest.ClockOffsets {
			sh, root := storetest.NewShare(ahead), storetest.PrivateDir(t)
			sh.NoLocks = noLocks
			inj := vfs.Inject(sh.From("a"))
			gate := vfs.NewGate()
			inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpSync}, Path: regexp.MustCompile(`-\d+\.tmp$`), Gate: gate})
			a, b := sharedTier(t, inj, root), sharedTier(t, sh.From("b"), root)
			up, err := a.Create(ctx, pagefile.Name{Fingerprint: storetest.Fingerprint(1), Class: pagefile.ClassPage, Key: pagefile.Key{1}})
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
			_, _ = b.Temp.claim() // claim sweeps as well
			gate.Open()
			require.NoError(t, <-result, "no locks %v, server ahead by %v", noLocks, ahead)
			info, err := tier.Stat(ctx, a, pagefile.Name{Fingerprint: storetest.Fingerprint(1), Class: pagefile.ClassPage, Key: pagefile.Key{1}})
			require.NoError(t, err)
			require.True(t, used.Equal(info.Used))
		}
	}
}

// TestFilesOfDeadMachinesGo: files of dead machines are removed after an hour by the server's
// clock, independent of this machine's clock, and their lock files one day later.
func TestFilesOfDeadMachinesGo(t *testing.T) {
	for _, noLocks := range []bool{true, false} {
		for _, ahead := range storetest.ClockOffsets {
			sh, root := storetest.NewShare(ahead), storetest.PrivateDir(t)
			sh.NoLocks = noLocks
			a := New(sh.From("a"), root, Options{})
			a.shared = true
			_, err := a.Create(ctx, pagefile.Name{Fingerprint: storetest.Fingerprint(1), Class: pagefile.ClassPage, Key: pagefile.Key{1}})
			require.NoError(t, err)
			sh.Die("a")
			age := func(by time.Duration) {
				for _, path := range append(storetest.FilesIn(t, root, TmpExt), filepath.Join(a.Temp.dir, a.Temp.id+LockExt)) {
					when := time.Now().Add(-by)
					require.NoError(t, os.Chtimes(path, when, when))
				}
			}
			b := sharedTier(t, sh.From("b"), root)
			for _, step := range []struct {
				age         time.Duration
				temps, lock bool
			}{{0, true, true}, {OrphanAge - time.Minute, true, true}, {OrphanAge + time.Minute, false, true}, {lockAge + time.Minute, false, false}} {
				age(step.age)
				_, err = b.Temp.claim()
				if err != nil {
					require.ErrorIs(t, err, tier.ErrNotShared)
					b.Temp.refused = time.Time{}
				}
				aside, err := b.Aside(ctx)
				require.NoError(t, err)
				require.Equal(t, step.temps, len(storetest.FilesIn(t, root, TmpExt)) > 0, "%v", step)
				require.Equal(t, step.lock, aside.Living[a.Temp.id], "%v", step)
				if !step.lock {
					break
				}
			}
		}
	}
}

// TestLocksOfOneSystemStillTellAtOnce: processes of the same system find a killed process dead
// at once, also on a share.
func TestLocksOfOneSystemStillTellAtOnce(t *testing.T) {
	sh, root := storetest.NewShare(0), storetest.PrivateDir(t)
	a := New(sh.From("a"), root, Options{})
	a.shared = true
	_, err := a.Create(ctx, pagefile.Name{Fingerprint: storetest.Fingerprint(1), Class: pagefile.ClassPage, Key: pagefile.Key{1}})
	require.NoError(t, err)
	sh.Die("a")
	b := sharedTier(t, sh.From("a"), root)
	_, err = b.Temp.claim()
	require.NoError(t, err)
	require.Empty(t, storetest.FilesIn(t, root, TmpExt))
	require.Len(t, storetest.FilesIn(t, root, LockExt), 1)
}

// TestIDNamesTheMountOfTheDay: a directory was mounted again, and its previous device number
// may belong to another mount.
func TestIDNamesTheMountOfTheDay(t *testing.T) {
	sh := storetest.NewShare(0)
	a := sharedTier(t, sh.From("mount1"), storetest.PrivateDir(t))
	for _, mount := range []string{"mount1", "mount2"} {
		a.FS = sh.From(mount)
		id, err := a.Temp.claim()
		require.NoError(t, err)
		require.Contains(t, id, mount)
		require.NoError(t, a.Temp.leaveLocked())
	}
}

// TestOwnRestartIsNoOtherMachine: a machine loses power while it writes, and is back two minutes later,
// three minutes after its last write. Its second directory is its own. The machine waits only if the id
// may be another machine's: a copy of the machine, with the same name, may be running.
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
		for _, ahead := range storetest.ClockOffsets {
			t.Run(fmt.Sprint(name, " ", ahead), func(t *testing.T) {
				sh, root := storetest.NewShare(ahead), storetest.PrivateDir(t)
				sh.Reach = vfs.ReachDisk
				sh.Machine = map[string]string{"boot1": c.before, "boot2": c.after}
				sh.Up = map[string]time.Duration{"boot1": 10 * wrote, "boot2": c.up}
				page := pagefile.Name{Fingerprint: storetest.Fingerprint(1), Class: pagefile.ClassPage, Key: pagefile.Key{1}}
				a := New(sh.From("boot1"), root, Options{})
				a.shared = true
				_, err := a.Create(ctx, page)
				require.NoError(t, err)
				sh.Die("boot1")
				when := time.Now().Add(-wrote)
				lock := filepath.Join(a.Temp.dir, a.Temp.id+LockExt)
				left := storetest.FilesIn(t, root, TmpExt)
				require.Len(t, left, 1)
				for _, path := range []string{lock, left[0]} {
					require.NoError(t, os.Chtimes(path, when, when))
				}
				b := sharedTier(t, sh.From("boot2"), root)
				_, err = b.Create(ctx, page)
				if !c.writes {
					require.ErrorIs(t, err, tier.ErrNotShared)
					return
				}
				require.NoError(t, err)
				require.FileExists(t, left[0], "the file stays for an hour")

				// The id was a copy's, and the copy continues.
				require.NoError(t, os.Chtimes(lock, time.Now(), time.Now()))
				b.Temp.beat = time.Now().Add(-beatEvery)
				_, err = b.Create(ctx, page)
				require.ErrorIs(t, err, tier.ErrNotShared)
			})
		}
	}
}

// TestLivingClaimBeats: a process that continues to write touches its lock file, so that no other
// machine takes the process for a stopped one, and makes a new claim when that file is gone.
func TestLivingClaimBeats(t *testing.T) {
	sh, root := storetest.NewShare(0), storetest.PrivateDir(t)
	a, b := sharedTier(t, sh.From("a"), root), sharedTier(t, sh.From("b"), root)
	id, err := a.Temp.claim()
	require.NoError(t, err)
	lock := filepath.Join(a.Temp.dir, id+LockExt)
	old := time.Now().Add(-2 * beatAge)
	require.NoError(t, os.Chtimes(lock, old, old))
	a.Temp.beat = time.Now().Add(-beatEvery)
	again, err := a.Temp.claim()
	require.NoError(t, err)
	require.Equal(t, id, again)
	_, err = b.Temp.claim()
	require.ErrorIs(t, err, tier.ErrNotShared, "the other machine wrote a moment ago")

	require.NoError(t, os.Remove(lock))
	a.Temp.beat = time.Now().Add(-beatEvery)
	again, err = a.Temp.claim()
	require.NoError(t, err)
	require.NotEqual(t, id, again)
	require.FileExists(t, filepath.Join(a.Temp.dir, again+LockExt))
}

// TestLookingAtALockMakesNone: a process ends while another machine checks whether the process
// lives. A lock file made by that check would look like the lock of a machine that writes.
func TestLookingAtALockMakesNone(t *testing.T) {
	for _, noLocks := range []bool{true, false} {
		sh, root := storetest.NewShare(0), storetest.PrivateDir(t)
		sh.NoLocks = noLocks
		a := New(sh.From("a"), root, Options{})
		a.shared = true
		id, err := a.Temp.claim()
		require.NoError(t, err)
		inj := vfs.Inject(sh.From("b"))
		var once sync.Once
		inj.Watch(func(op vfs.Op, paths ...string) {
			if op == vfs.OpLock && filepath.Base(paths[0]) == id+LockExt {
				once.Do(func() { require.NoError(t, a.Close()) })
			}
		})
		b := sharedTier(t, inj, root)
		_, err = b.Temp.claim()
		require.NoError(t, err, "the process is alone on the share")
		require.NoFileExists(t, filepath.Join(a.Temp.dir, id+LockExt))
	}
}

// TestTimesOfTheKeeperAlone: the clocks of two machines differ from the server's, and files
// touched by a machine get the machine's time. Each machine sees that the other lives, and
// reads the server's clock.
func TestTimesOfTheKeeperAlone(t *testing.T) {
	for _, noLocks := range []bool{true, false} {
		for _, ahead := range storetest.ClockOffsets {
			sh, root := storetest.NewShare(ahead), storetest.PrivateDir(t)
			sh.NoLocks = noLocks
			a, b := sharedTier(t, sh.From("a"), root), sharedTier(t, sh.From("b"), root)
			id, err := a.Temp.claim()
			require.NoError(t, err)
			old := time.Now().Add(-2 * lockAge)
			require.NoError(t, os.Chtimes(filepath.Join(a.Temp.dir, id+LockExt), old, old))
			for range 2 { // also with an earlier beat
				a.Temp.beat = time.Now().Add(-beatEvery)
				again, err := a.Temp.claim()
				require.NoError(t, err)
				require.Equal(t, id, again)
			}
			beats := storetest.FilesIn(t, root, TmpExt)
			require.Len(t, beats, 1)
			b.Temp.refused = time.Time{}
			_, err = b.Temp.claim()
			require.ErrorIs(t, err, tier.ErrNotShared, "server ahead by %v", ahead)
			require.Equal(t, beats, storetest.FilesIn(t, root, TmpExt))
			for _, tier := range []*Tier{a, b} {
				now, err := tier.Now(ctx)
				require.NoError(t, err)
				require.Less(t, time.Until(now).Abs()-ahead.Abs(), time.Minute)
				require.Greater(t, time.Until(now).Abs()-ahead.Abs(), -time.Minute)
			}
			require.NoError(t, a.Close())
			require.Empty(t, storetest.FilesIn(t, root, TmpExt))
		}
	}
}

// TestSleepCountsForOthers: this machine slept. Other machines may have taken it for a stopped
// one, and its claims for a dead process's.
func TestSleepCountsForOthers(t *testing.T) {
	require.Less(t, time.Since(storetest.Slept(time.Hour)), time.Minute)
	require.Greater(t, time.Now().Round(0).Sub(storetest.Slept(time.Hour)), 59*time.Minute)

	sh := storetest.NewShare(0)
	a := sharedTier(t, sh.From("a"), storetest.PrivateDir(t))
	_, err := a.Temp.claim()
	require.NoError(t, err)
	a.Temp.beat = storetest.Slept(beatEvery)
	_, err = a.Temp.claim()
	require.NoError(t, err)
	require.Len(t, storetest.FilesIn(t, a.Root, TmpExt), 1, "the process has shown that it lives")
}

// TestOneMachineWritesWhereLocksDoNotReach: the second machine is refused until the first has
// ended, and logs a remedy once.
func TestOneMachineWritesWhereLocksDoNotReach(t *testing.T) {
	for _, reach := range []vfs.Reach{vfs.ReachHost, vfs.ReachDisk} {
		sh, root := storetest.NewShare(time.Hour), storetest.PrivateDir(t)
		sh.Reach = reach
		var log strings.Builder
		a := sharedTier(t, sh.From("a"), root)
		b := New(sh.From("b"), root, Options{Shared: true, Log: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, a.Claim(ctx))
		require.ErrorIs(t, b.Claim(ctx), tier.ErrNotShared)
		require.NoError(t, a.Close())
		require.ErrorIs(t, b.Claim(ctx), tier.ErrNotShared, "the claim is not tried again and again")
		require.Equal(t, 1, strings.Count(log.String(), "is only read"), "%s", log.String())
		b.Temp.refused = time.Now().Add(-beatEvery)
		require.NoError(t, b.Claim(ctx))
		require.Equal(t, 1, strings.Count(log.String(), "may be written again"))
		require.NoError(t, b.Close())
	}
}

// TestClaimOfAnEarlierBootGoes: a machine loses power with claimed room in a share, and
// returns the claim when its next server counts. Claims that may be another machine's stay. If
// the claim belonged to a sleeping copy, the copy makes a new claim.
func TestClaimOfAnEarlierBootGoes(t *testing.T) {
	const up, page = 10 * time.Minute, 4096
	for name, c := range map[string]struct {
		before, after string // names of the machine
		up, idle      time.Duration
		gone          bool
	}{
		"own restart":             {"m", "m", up, up + time.Minute, true},
		"it was up at the time":   {"m", "m", up, up - time.Minute, false},
		"it may only have paused": {"m", "m", time.Minute, beatAge - time.Minute, false},
		"another machine":         {"m", "other", up, up + time.Minute, false},
		"without names":           {"", "", up, up + time.Minute, false},
	} {
		for _, ahead := range storetest.ClockOffsets {
			t.Run(fmt.Sprint(name, " ", ahead), func(t *testing.T) {
				sh, root := storetest.NewShare(ahead), storetest.PrivateDir(t)
				sh.Reach = vfs.ReachAll
				sh.Machine = map[string]string{"boot1": c.before, "boot2": c.after}
				sh.Up = map[string]time.Duration{"boot1": time.Hour, "boot2": c.up}
				var book *ledger.Book
				a := New(sh.From("boot1"), root, Options{Shared: true, Replaced: func() { book.Restart() }})
				defer func() { require.NoError(t, a.Close()) }()
				book = ledger.NewBook(a, 0, 0, time.Now)
				upload := func(n byte, room int64) {
					r, err := book.Reserve(ctx, room)
					require.NoError(t, err)
					tiertest.Upload(t, a, tiertest.Page(n), make([]byte, page), time.Now())
					r.Finish(page)
				}
				upload(1, page)
				id := a.Temp.id
				file, left, err := a.Temp.create("")
				require.NoError(t, err)
				require.NoError(t, file.Close())
				sh.Die("boot1")
				when := time.Now().Add(-c.idle)
				for _, path := range []string{left, filepath.Join(a.Temp.dir, id+LockExt)} {
					require.NoError(t, os.Chtimes(path, when, when))
				}

				b := sharedTier(t, sh.From("boot2"), root)
				look := ledger.NewBook(b, 0, 0, time.Now)
				covered := func() *ledger.Ledger {
					l, err := look.Read(ctx)
					require.NoError(t, err)
					files := append(storetest.FilesIn(t, root, PageExt), left)
					require.LessOrEqual(t, int64(len(files))*page, l.Figure())
					return l
				}
				require.Contains(t, covered().Claims, id)
				count, err := look.BeginCount(ctx)
				require.NoError(t, err)
				aside, err := b.Aside(ctx)
				require.NoError(t, err)
				count.Living, count.Held = aside.Living, aside.Held
				require.NoError(t, look.EndCount(ctx, count, 2*page))
				require.Equal(t, !c.gone, covered().Claims[id] != ledger.Claim{})
				require.FileExists(t, left, "the file stays for an hour")

				a.Temp.beat = time.Now().Add(-beatEvery)
				upload(2, 2*ledger.ChunkBytes) // more than the rest of a claim
				require.Equal(t, c.gone, a.Temp.id != id)
				require.Contains(t, covered().Claims, a.Temp.id)
			})
		}
	}
}

// TestPeersMakeNoLockFiles: a process ends while another one counts processes. No lock file
// takes the place of the removed one: its id would count as living for a day where locks do not
// reach all machines.
func TestPeersMakeNoLockFiles(t *testing.T) {
	ctx, root := context.Background(), storetest.PrivateDir(t)
	share := storetest.NewShare(0)
	share.Reach = vfs.ReachAll
	gone := New(share.From("other"), root, Options{Create: true})
	require.NoError(t, gone.Claim(ctx))

	inj := vfs.Inject(share.From("this"))
	tr := New(inj, root, Options{Create: true})
	defer func() { require.NoError(t, tr.Close()) }()
	require.NoError(t, tr.Claim(ctx))
	inj.Watch(func(op vfs.Op, paths ...string) {
		if op == vfs.OpLock && strings.HasSuffix(paths[0], gone.Temp.id+LockExt) && gone.Temp.id != "" {
			require.NoError(t, gone.Close())
		}
	})
	n, err := tr.Peers()
	require.NoError(t, err)
	require.Equal(t, 1, n)
	left, err := os.ReadDir(filepath.Join(root, versionDir, tmpDir))
	require.NoError(t, err)
	require.Len(t, left, 1, "this process's lock file")
}
