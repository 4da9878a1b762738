package dir

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/vfs"
)

/*
Whether the process lives that temporary files belong to is told by its lock, and
where that proves nothing by when it was last seen.

That a lock is held proves that its process lives, wherever that runs. That it is
free proves its death only for a process of this running system that uses the same
mount, or on a disk that no other machine uses: a network filesystem may keep locks
on each machine, with NFS 3 and nolock, with local_lock, or on each mount, with SMB,
9P and FUSE, and a machine that exports its disk does not see the locks of those who
mount it. One machine cannot find that out by trying. So processes make a file anew
every minute while they write, and files of other machines are removed only when they,
and the lock file, have not changed for an hour. So are those that processes of this
machine left before it restarted: that it is the same one is told by a name that a copy
of it has as well. Their lock files, and so what they had claimed, go after beatAge.
Times are compared with that of a file made just now, never with this machine's clock:
hosts differ, by hours at worst. A file that is touched will not do, for SMB, SSHFS and all of macOS send the
time of the machine that touches it.
*/
const (
	// OrphanAge is for how long temporary files, and their lock file, must not
	// have changed before they are taken for a dead process's whose lock tells
	// nothing.
	OrphanAge = time.Hour

	// lockAge is the same for a lock file without temporary files: a process that
	// only sleeps has a claim in the ledger for as long as ClaimLife.
	lockAge = tier.ClaimLife + OrphanAge

	// beatEvery is how often a process that writes shows that it lives, and beatAge
	// how long ago that may be while it counts as one that writes.
	beatEvery = time.Minute
	beatAge   = 5 * beatEvery
)

// foreign reports whether other machines may use the directory as well.
func (d *tempDir) foreign() bool {
	return d.t.shared || d.locking != nil && d.locking.Reach != vfs.ReachDisk
}

// lockless reports whether two machines may hold one lock at a time here.
func (d *tempDir) lockless() bool {
	return d.t.shared && d.locking != nil && d.locking.Reach != vfs.ReachAll
}

// learnLocksLocked finds out, once, who sees locks here. d.mu is held.
func (d *tempDir) learnLocksLocked() error {
	if d.locking != nil {
		return nil
	}
	l, err := d.t.FS.Locking(d.dir)
	if err != nil && errors.Is(classify(err), tier.ErrNotFound) {
		return err
	}
	if err != nil {
		l.Reach, l.Why = vfs.ReachHost, err.Error()
	}
	d.locking = &l
	if l.Reach == vfs.ReachHost && d.t.watch.log != nil {
		d.t.watch.log.Warn("kv tier's locks do not reach other machines, or it cannot be told: only one may write here",
			"filesystem", l.Why, "remedy", lockRemedy)
	}
	return nil
}

const lockRemedy = "mount it with NFS 4 and without local_lock or nolock, or give each machine a directory of its own (OLLAMA_KV_INSTANCE_ID for the local one)"

// notShared is the error of a claim that was refused.
func (d *tempDir) notShared() error {
	return fmt.Errorf("another machine writes below %s, and locks do not keep the two apart; %s: %w", d.t.Root, lockRemedy, tier.ErrNotShared)
}

// trusts reports whether a free lock of this id proves that its process is dead.
func (d *tempDir) trusts(id string) bool { return !d.foreign() || d.sameSystem(id) }

// trusted is trusts for a caller without d.mu.
func (d *tempDir) trusted(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.trusts(id)
}

// sameSystem reports whether an id was chosen by a process of this running system
// that uses the same mount.
func (d *tempDir) sameSystem(id string) bool {
	if d.locking == nil {
		return false
	}
	fields := strings.Split(id, ".")
	return len(fields) >= 2 && fields[len(fields)-2] == d.locking.Host
}

// systemLocked is the part of an id that names the machine and the running system.
// d.mu is held.
func (d *tempDir) systemLocked() string {
	if d.locking.Machine == "" {
		return d.locking.Host
	}
	return d.locking.Machine + "." + d.locking.Host
}

// endedLocked reports whether an id is that of a process of this machine before its
// last restart. Copies of a virtual machine may have one name, so that alone proves
// nothing: the lock file must not have changed since this system is running. A copy
// that goes on all the same touches it within beatEvery, and is another machine then.
// That is enough to write beside it and not to remove its files. d.mu is held.
func (d *tempDir) endedLocked(id string, idle time.Duration) bool {
	fields := strings.Split(id, ".")
	if len(fields) < 3 || d.locking.Machine == "" || fields[len(fields)-3] != d.locking.Machine {
		return false
	}
	now, err := d.t.FS.Locking(d.dir) // Up has grown
	return err == nil && idle > now.Up
}

// lockOverLocked reports whether a lock file stands for nobody any more, whose process
// has changed nothing for so long. What an earlier run of this machine has left would
// keep its claim in the ledger for a day more. A copy of the machine that only sleeps
// finds its lock file gone before it writes, and claims anew. d.mu is held.
func (d *tempDir) lockOverLocked(id string, idle time.Duration) bool {
	return idle > lockAge || idle > beatAge && d.endedLocked(id, idle)
}

// beatLocked shows that this process lives when that is due, where other machines may
// be waiting for it. When its lock file is gone so is the claim. d.mu is held.
func (d *tempDir) beatLocked() error {
	if !d.foreign() || tier.WallBetween(d.beat, time.Now()) < beatEvery {
		return nil
	}
	d.beat = time.Now()
	lock, err := d.t.FS.Open(filepath.Join(d.dir, d.id+LockExt))
	if errors.Is(classify(err), tier.ErrNotFound) {
		d.unlock(d.lock)
		d.id, d.lock = "", nil
		d.t.claimsAnew()
		return nil
	}
	if err != nil {
		return err
	}
	_ = lock.Close()
	if err := d.renewBeat(); err != nil && !vfs.IsNoSpace(err) { // a full disk is still collected
		return err
	}
	return d.yieldLocked()
}

// renewBeat replaces the file whose time says when this process was last seen. It is
// made anew, because a touched file may get the time of who touches it.
func (d *tempDir) renewBeat() error {
	path := d.path(d.id, "beat")
	f, err := d.t.FS.Create(path)
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		err = d.t.FS.Rename(path, filepath.Join(d.dir, d.id+"-beat"+TmpExt))
	}
	if err != nil {
		d.discard(path, 0) // a full disk may fail Create when the name is there
	}
	return err
}

// nowLocked is what the filesystem's clock shows, which may be another machine's.
// It is false without an id, whose file could be made to tell by, and where none can
// be made. d.mu is held.
func (d *tempDir) nowLocked() (time.Time, bool) {
	if !d.foreign() {
		return time.Now(), true
	}
	if d.id == "" {
		return time.Time{}, false
	}
	now, err := d.timeNow(d.path(d.id, clockWord))
	return now, err == nil
}

// changed returns when a file changed last. It is opened for that: an NFS client
// asks its server then, and otherwise tells what it remembers.
func (d *tempDir) changed(path string) (time.Time, bool) {
	f, err := d.t.FS.Open(path)
	if err != nil {
		return time.Time{}, false
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return time.Time{}, false
	}
	return fi.ModTime(), true
}

// TempFiles is what one process has in the temporary directory.
type TempFiles struct {
	Lock  bool
	Paths []string // of its temporary files
}

// groupsLocked lists the temporary directory by id. d.mu is held.
func (d *tempDir) groupsLocked() (map[string]*TempFiles, error) {
	entries, err := d.t.FS.ReadDir(d.dir)
	if err != nil {
		return nil, err
	}
	groups := make(map[string]*TempFiles)
	of := func(id string) *TempFiles {
		if groups[id] == nil {
			groups[id] = new(TempFiles)
		}
		return groups[id]
	}
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), LockExt); ok {
			of(id).Lock = true
		} else if id, _, ok := strings.Cut(e.Name(), "-"); ok && strings.HasSuffix(e.Name(), TmpExt) {
			of(id).Paths = append(of(id).Paths, filepath.Join(d.dir, e.Name()))
		}
	}
	return groups, nil
}

// sweep removes the files of processes that are dead, and returns the ids of those
// that hold their lock. Failures are left for the next process.
func (d *tempDir) sweep() (holding map[string]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.learnLocksLocked() != nil {
		return nil
	}
	return d.sweepLocked()
}

// sweepLocked is sweep. d.mu is held.
func (d *tempDir) sweepLocked() (holding map[string]bool) {
	groups, err := d.groupsLocked()
	if err != nil {
		return nil
	}
	holding = make(map[string]bool)
	for id, files := range groups {
		if id == d.id {
			holding[id] = d.lock != nil
			continue
		}
		held, alive, err := d.tryLocked(id, files)
		switch {
		case alive:
			holding[id] = true
		case err != nil: // perhaps it lives
		case held != nil:
			for _, path := range files.Paths {
				_ = d.t.FS.Remove(path)
			}
			d.removeLock(filepath.Join(d.dir, id+LockExt))
		default:
			d.sweepOldLocked(id, files)
		}
		d.unlock(held)
	}
	return holding
}

// tryLocked reports whether the lock of an id shows that its process lives, and
// returns the lock, to be released, when it shows that it is dead. With neither it
// shows nothing. d.mu is held.
func (d *tempDir) tryLocked(id string, files *TempFiles) (held io.Closer, alive bool, err error) {
	if !files.Lock {
		return nil, false, nil
	}
	lock, err := d.t.FS.LockThere(filepath.Join(d.dir, id+LockExt))
	switch {
	case errors.Is(classify(err), tier.ErrNotFound): // it has ended since the directory was listed
		files.Lock = false
		return nil, false, nil
	case errors.Is(err, vfs.ErrLocked):
		return nil, true, nil
	case vfs.IsNoLocks(err):
		return nil, false, nil
	case err != nil:
		return nil, false, err
	case !d.trusts(id):
		d.unlock(lock)
		return nil, false, nil
	}
	return lock, false, nil
}

// sweepOldLocked removes the files of an id that nobody has written for long.
func (d *tempDir) sweepOldLocked(id string, files *TempFiles) {
	age, known := d.idleLocked(id, files)
	if !known {
		return
	}
	if age > OrphanAge {
		for _, path := range files.Paths {
			_ = d.t.FS.Remove(path)
		}
	}
	if files.Lock && d.lockOverLocked(id, age) {
		d.removeLock(filepath.Join(d.dir, id+LockExt))
	}
}

// idleLocked returns for how long nothing of an id has changed, by the
// filesystem's clock; false when that cannot be told. d.mu is held.
func (d *tempDir) idleLocked(id string, files *TempFiles) (time.Duration, bool) {
	var last time.Time
	paths := files.Paths
	if files.Lock {
		paths = append(paths[:len(paths):len(paths)], filepath.Join(d.dir, id+LockExt))
	}
	for _, path := range paths {
		if when, ok := d.changed(path); ok && when.After(last) {
			last = when
		}
	}
	now, ok := d.nowLocked()
	if !ok || last.IsZero() {
		return 0, false
	}
	return now.Sub(last), true
}

// yieldLocked gives the claim up where another machine writes as well and locks do
// not keep the two apart: the one that was there first goes on. Two that come at
// once may both yield, and try again. d.mu is held.
func (d *tempDir) yieldLocked() error {
	if !d.lockless() {
		return nil
	}
	other := d.otherWriterLocked()
	was := !d.refused.IsZero()
	log := d.t.watch.log
	if other == "" {
		if d.refused = (time.Time{}); was && log != nil {
			log.Info("kv tier may be written again")
		}
		return nil
	}
	d.refused = time.Now()
	_ = d.leaveLocked()
	d.t.claimsAnew()
	if !was && log != nil {
		log.Warn("kv tier is only read: another machine writes to it, and locks do not keep the two apart",
			"filesystem", d.locking.Why, "other", other, "remedy", lockRemedy)
	}
	return d.notShared()
}

// otherWriterLocked returns the id of a process of another machine that wrote a
// moment ago and whose lock is free all the same, "" for none. d.mu is held.
func (d *tempDir) otherWriterLocked() string {
	groups, err := d.groupsLocked()
	if err != nil {
		return ""
	}
	for id, files := range groups {
		if id == d.id || !files.Lock || d.sameSystem(id) {
			continue
		}
		held, alive, err := d.tryLocked(id, files)
		d.unlock(held)
		if alive || err != nil { // locks reach it
			continue
		}
		if age, known := d.idleLocked(id, files); known && age < beatAge && !d.endedLocked(id, age) {
			return id
		}
	}
	return ""
}

// judgment is what a tool finds out about the process that an id's files belong to.
type judgment struct {
	Held     io.Closer // its lock when it is dead, to be released
	Alive    bool
	Idle     time.Duration // with neither: for how long nothing has changed, when that is known
	LockOver bool          // and its lock file stands for nobody any more
}

// Judge tells, for a tool, whether the process lives that an id's files belong to. A
// tool that may write makes a file to tell the time by.
func (d *tempDir) Judge(id string, files *TempFiles, write bool) (j judgment, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.learnLocksLocked(); err != nil {
		return j, err
	}
	j.Held, j.Alive, err = d.tryLocked(id, files)
	if j.Alive || j.Held != nil || err != nil {
		return j, err
	}
	if write && d.foreign() && d.id == "" {
		if err := d.chooseLocked(); err != nil {
			return j, err
		}
	}
	if idle, known := d.idleLocked(id, files); known {
		j.Idle, j.LockOver = idle, files.Lock && d.lockOverLocked(id, idle)
	}
	return j, nil
}
