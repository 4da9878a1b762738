package dir

import (
	"errors"
	"io"
	"path/filepath"
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

// trusted does as trusts, for a caller without d.mu.
func (d *tempDir) trusted(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.reach.trusts(id)
}

// beatLocked shows, when the next beat is due, that this process lives; only directories that
// other machines use need beats. Without its lock file the process has lost its claim. d.mu is
// held.
func (d *tempDir) beatLocked() error {
	if !d.reach.foreign() || tier.WallBetween(d.beat, time.Now()) < beatEvery {
		return nil
	}
	d.beat = time.Now()
	lock, err := d.in.FS.Open(filepath.Join(d.dir, d.id+LockExt))
	if errors.Is(classify(err), tier.ErrNotFound) {
		unlock(d.lock)
		d.id, d.lock = "", nil
		d.in.claimsAnew()
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
	f, err := d.in.FS.Create(path)
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		err = d.in.FS.Rename(path, filepath.Join(d.dir, d.id+"-beat"+TmpExt))
	}
	if err != nil {
		d.left.discard(path, 0) // on a full disk, Create may fail and leave the name
	}
	return err
}

// nowLocked returns the time of the filesystem's clock, which may be another machine's. The
// result is false without an id, because no file can be made then, and when making the file
// fails. d.mu is held.
func (d *tempDir) nowLocked() (time.Time, bool) {
	if !d.reach.foreign() {
		return time.Now(), true
	}
	if d.id == "" {
		return time.Time{}, false
	}
	now, err := d.in.timeNow(d.path(d.id, clockWord))
	return now, err == nil
}

// changed returns the time of a file's last change. changed opens the file first: an NFS
// client then asks the server and does not use cached attributes.
func (r *root) changed(path string) (time.Time, bool) {
	f, err := r.FS.Open(path)
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

// groupsIn lists a temporary directory by id.
func groupsIn(fsys vfs.FS, dir string) (map[string]*TempFiles, error) {
	entries, err := fsys.ReadDir(dir)
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
			of(id).Paths = append(of(id).Paths, filepath.Join(dir, e.Name()))
		}
	}
	return groups, nil
}

// sweep removes the files of dead processes and returns the ids whose process holds its lock.
// Failures are left to the next process's sweep.
func (d *tempDir) sweep() (holding map[string]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.reach.learnLocks() != nil {
		return nil
	}
	return d.sweepLocked()
}

// sweepLocked does as sweep. d.mu is held.
func (d *tempDir) sweepLocked() (holding map[string]bool) {
	groups, err := groupsIn(d.in.FS, d.dir)
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
		unlock(held)
	}
	return holding
}

// removeDeadLocked removes the files of a dead process, whose lock is held. They are listed again,
// because the process may have made some before it died and after the first listing. Without
// its lock a file would stay for OrphanAge. d.mu is held.
func (d *tempDir) removeDeadLocked(id string) {
	groups, err := groupsIn(d.in.FS, d.dir)
	if err != nil || groups[id] == nil {
		return
	}
	for _, path := range groups[id].Paths {
		_ = d.in.FS.Remove(path)
	}
	d.in.removeLock(filepath.Join(d.dir, id+LockExt))
}

// tryLocked reports whether the lock of an id proves that its process lives. For a process
// proven dead, tryLocked returns the lock, which the caller releases. Without either result
// the lock proves nothing. d.mu is held.
func (d *tempDir) tryLocked(id string, files *TempFiles) (held io.Closer, alive bool, err error) {
	if !files.Lock {
		return nil, false, nil
	}
	lock, err := d.in.FS.LockThere(filepath.Join(d.dir, id+LockExt))
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
	case !d.reach.trusts(id):
		unlock(lock)
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
			_ = d.in.FS.Remove(path)
		}
	}
	if files.Lock && d.reach.lockOver(id, age) {
		d.in.removeLock(filepath.Join(d.dir, id+LockExt))
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
		if when, ok := d.in.changed(path); ok && when.After(last) {
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
	if !d.reach.lockless() {
		return nil
	}
	other := d.otherWriterLocked()
	was := !d.refused.IsZero()
	log := d.in.watch.log
	if other == "" {
		if d.refused = (time.Time{}); was && log != nil {
			log.Info("kv tier may be written again")
		}
		return nil
	}
	d.refused = time.Now()
	_ = d.leaveLocked()
	d.in.claimsAnew()
	if !was && log != nil {
		log.Warn("kv tier is only read: another machine writes to it, and locks do not keep the two apart",
			"filesystem", d.reach.locking.Why, "other", other, "remedy", lockRemedy)
	}
	return d.reach.notShared()
}

// otherWriterLocked returns the id of a process on another machine that wrote within beatAge
// although its lock is free here, "" for none. d.mu is held.
func (d *tempDir) otherWriterLocked() string {
	groups, err := groupsIn(d.in.FS, d.dir)
	if err != nil {
		return ""
	}
	for id, files := range groups {
		if id == d.id || !files.Lock || d.reach.sameSystem(id) {
			continue
		}
		held, alive, err := d.tryLocked(id, files)
		unlock(held)
		if alive || err != nil { // locks reach the other process
			continue
		}
		if age, known := d.idleLocked(id, files); known && age < beatAge && !d.reach.ended(id, age) {
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
	if err := d.reach.learnLocks(); err != nil {
		return j, err
	}
	j.Held, j.Alive, err = d.tryLocked(id, files)
	if j.Alive || j.Held != nil || err != nil {
		return j, err
	}
	if write && d.reach.foreign() && d.id == "" {
		if err := d.chooseLocked(); err != nil {
			return j, err
		}
	}
	if idle, known := d.idleLocked(id, files); known {
		j.Idle, j.LockOver = idle, files.Lock && d.reach.lockOver(id, idle)
	}
	return j, nil
}
