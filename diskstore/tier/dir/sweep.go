package dir

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

/*
A process holds the lock of its temporary files while it lives. Where the lock proves
nothing, the age of the files' last change decides.

A held lock proves that its process lives, on any machine. A free lock proves that its
process is dead in two cases only: the process belonged to this running system and used the
same mount, or no other machine uses the disk. In other cases a lock may not reach every
machine: NFS 3 and nolock or local_lock keep locks on each machine; SMB, 9P and FUSE may
keep locks on each mount; a machine that exports its disk does not see the locks of its
clients. No test on one machine can show how far locks reach.

So processes make a file anew every minute while they write, and the files of another
machine are removed only if the files and their lock file have not changed for OrphanAge.
The same holds for files that processes of this machine left before it restarted: only a
name identifies the machine, and copies of the machine have the same name. Lock files from
before a restart, and with them their claims, are removed after beatAge.

Times are compared with the time of a file made just now, never with this machine's clock:
clocks of hosts differ, by hours at worst. Touching a file is not enough, because SMB, SSHFS
and all filesystems of macOS store the time of the machine that touches the file.
*/
const (
	// OrphanAge is the time without change after which temporary files, and their lock file,
	// count as a dead process's, where the lock proves nothing.
	OrphanAge = time.Hour

	// lockAge is the same time for a lock file without temporary files: a process that only
	// sleeps has a claim in the ledger until ClaimLife has passed.
	lockAge = tier.ClaimLife + OrphanAge

	// beatEvery is the interval at which a writing process shows that it lives. A process
	// whose last beat is older than beatAge no longer counts as writing.
	beatEvery = time.Minute
	beatAge   = 5 * beatEvery
)

// foreign reports whether other machines may use the directory as well.
func (d *tempDir) foreign() bool {
	return d.t.shared || d.locking != nil && d.locking.Reach != vfs.ReachDisk
}

// lockless reports whether two machines may hold the same lock here at the same time.
func (d *tempDir) lockless() bool {
	return d.t.shared && d.locking != nil && d.locking.Reach != vfs.ReachAll
}

// learnLocksLocked finds out, once, how far locks reach here. d.mu is held.
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

// notShared returns the error of a refused claim.
func (d *tempDir) notShared() error {
	return fmt.Errorf("another machine writes below %s, and locks do not keep the two apart; %s: %w", d.t.Root, lockRemedy, tier.ErrNotShared)
}

// trusts reports whether a free lock of this id proves that its process is dead.
func (d *tempDir) trusts(id string) bool { return !d.foreign() || d.sameSystem(id) }

// trusted does as trusts, for a caller without d.mu.
func (d *tempDir) trusted(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.trusts(id)
}

// sameSystem reports whether an id was chosen by a process of this running system that uses
// the same mount.
func (d *tempDir) sameSystem(id string) bool {
	if d.locking == nil {
		return false
	}
	fields := strings.Split(id, ".")
	return len(fields) >= 2 && fields[len(fields)-2] == d.locking.Host
}

// systemLocked is the part of an id that names the machine and the running system. d.mu is
// held.
func (d *tempDir) systemLocked() string {
	if d.locking.Machine == "" {
		return d.locking.Host
	}
	return d.locking.Machine + "." + d.locking.Host
}

// endedLocked reports whether a process of this machine chose an id before the machine's last
// restart. d.mu is held.
//
// Copies of a virtual machine may have the same name, so the name alone proves nothing: in
// addition the lock file must be unchanged since this system started. A running copy touches
// its lock file every beatEvery and so counts as another machine. Both conditions together
// allow this machine to write in the same root, and not to remove the files of the id.
func (d *tempDir) endedLocked(id string, idle time.Duration) bool {
	fields := strings.Split(id, ".")
	if len(fields) < 3 || d.locking.Machine == "" || fields[len(fields)-3] != d.locking.Machine {
		return false
	}
	now, err := d.t.FS.Locking(d.dir) // reads the present Up
	return err == nil && idle > now.Up
}

// lockOverLocked reports whether a lock file, unchanged for idle, no longer protects any
// process. d.mu is held.
//
// Lock files from before this machine's restart expire early, after beatAge: their claims
// would otherwise stay in the ledger for one day more. A sleeping copy of the machine notices
// before its next write that its lock file is gone, and makes a new claim.
func (d *tempDir) lockOverLocked(id string, idle time.Duration) bool {
	return idle > lockAge || idle > beatAge && d.endedLocked(id, idle)
}

// beatLocked shows, when the next beat is due, that this process lives; only directories that
// other machines use need beats. Without its lock file the process has lost its claim. d.mu is
// held.
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
	if err := d.renewBeat(); err != nil && !vfs.IsNoSpace(err) { // with a full disk the process still collects
		return err
	}
	return d.yieldLocked()
}

// renewBeat replaces the file whose time is the last sign of life of this process. The file is
// made anew because touching a file may set the time of the machine that touches it.
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
		d.discard(path, 0) // on a full disk, Create may fail and leave the name
	}
	return err
}

// nowLocked returns the time of the filesystem's clock, which may be another machine's. The
// result is false without an id, because no file can be made then, and when making the file
// fails. d.mu is held.
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

// changed returns the time of a file's last change. changed opens the file first: an NFS
// client then asks the server and does not use cached attributes.
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

// TempFiles are the files of one process in the temporary directory.
type TempFiles struct {
	Lock  bool
	Paths []string
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
		switch id, lock, ok := TempID(e.Name()); {
		case lock:
			of(id).Lock = true
		case ok:
			of(id).Paths = append(of(id).Paths, filepath.Join(d.dir, e.Name()))
		}
	}
	return groups, nil
}

// sweep removes the files of dead processes and returns the ids whose process holds its lock.
// Failures are left to the next process's sweep.
func (d *tempDir) sweep() (holding map[string]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.learnLocksLocked() != nil {
		return nil
	}
	return d.sweepLocked()
}

// sweepLocked does as sweep. d.mu is held.
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
		case err != nil: // the process may live
		case held != nil:
			d.removeDeadLocked(id)
		default:
			d.sweepOldLocked(id, files)
		}
		d.unlock(held)
	}
	return holding
}

// removeDeadLocked removes the files of a dead process, whose lock is held. They are listed again,
// because the process may have made some before it died and after the first listing. Without
// its lock a file would stay for OrphanAge. d.mu is held.
func (d *tempDir) removeDeadLocked(id string) {
	groups, err := d.groupsLocked()
	if err != nil || groups[id] == nil {
		return
	}
	for _, path := range groups[id].Paths {
		_ = d.t.FS.Remove(path)
	}
	d.removeLock(filepath.Join(d.dir, id+LockExt))
}

// tryLocked reports whether the lock of an id proves that its process lives. For a process
// proven dead, tryLocked returns the lock, which the caller releases. Without either result
// the lock proves nothing. d.mu is held.
func (d *tempDir) tryLocked(id string, files *TempFiles) (held io.Closer, alive bool, err error) {
	if !files.Lock {
		return nil, false, nil
	}
	lock, err := d.t.FS.LockThere(filepath.Join(d.dir, id+LockExt))
	switch {
	case errors.Is(classify(err), tier.ErrNotFound): // the process has ended since the directory was listed
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

// sweepOldLocked removes the files of an id that have not changed for OrphanAge. d.mu is held.
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

// idleLocked returns the time since the last change of an id's files, by the filesystem's
// clock, and false when the clock or the files cannot be read. d.mu is held.
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

// yieldLocked gives up the claim when another machine writes as well and locks do not exclude
// one of the two: the first writer continues. Two processes that start at the same time may
// both yield and try again. d.mu is held.
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

// otherWriterLocked returns the id of a process on another machine that wrote within beatAge
// although its lock is free here, "" for none. d.mu is held.
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
		if alive || err != nil { // locks reach the other process
			continue
		}
		if age, known := d.idleLocked(id, files); known && age < beatAge && !d.endedLocked(id, age) {
			return id
		}
	}
	return ""
}

// judgment is the result of a tool's check of the process of an id.
type judgment struct {
	Held     io.Closer // the lock of a dead process; the caller closes it
	Alive    bool
	Idle     time.Duration // if neither Held nor Alive is set: time since the last change, 0 if unknown
	LockOver bool          // the lock file no longer protects any process
}

// Judge finds out, for a tool, whether the process of an id lives. With write, Judge may make
// a file to read the filesystem's clock.
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
