package dir

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

/*
A process holds the lock of its temporary files while it lives. A held lock proves that its process
lives, on any machine. A free lock proves that its process is dead only if the process belonged to this
running system and used the same mount, or if no other machine uses the disk. Otherwise a lock may not
reach every machine: NFS 3, nolock and local_lock keep locks on each machine, SMB, 9P and FUSE perhaps
on each mount, and a machine that exports its disk does not see the locks of its clients. No test on
one machine can show how far locks reach.

So processes make a file anew every minute while they write, and the files of another machine are
removed only if neither they nor their lock file have changed for OrphanAge. So are files that this
machine left before it restarted: copies of the machine have the same name. Lock files from before a
restart, and with them their claims, are removed after beatAge.

Times are compared with that of a file made just now: clocks of hosts differ, by hours at worst.
Touching a file is not enough, because SMB, SSHFS and all filesystems of macOS store the time of the
machine that touches it.
*/
const (
	// OrphanAge is the time without change after which temporary files, and their lock file,
	// count as a dead process's, where the lock proves nothing.
	OrphanAge = time.Hour

	// lockAge is the same for a lock file alone: the claim of a process that sleeps ends at ClaimLife.
	lockAge = tier.ClaimLife + OrphanAge

	// A writing process shows every beatEvery that it lives, and counts as writing for beatAge.
	beatEvery = time.Minute
	beatAge   = 5 * beatEvery
)

// beatLocked shows, when the next beat is due, that this process lives; only directories that other
// machines use need beats. Without its lock file the process has lost its claim. d.mu is held.
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

// TempFiles are the paths of one process's files in the temporary directory.
type TempFiles struct {
	Lock  string // "" without one
	Paths []string
}

// All returns the paths, the lock's last.
func (f TempFiles) All() []string {
	if f.Lock == "" {
		return f.Paths
	}
	return append(slices.Clip(f.Paths), f.Lock)
}

// TempsByID groups temporary files by the id of their process.
func TempsByID(paths iter.Seq[string]) map[string]TempFiles {
	groups := make(map[string]TempFiles)
	for path := range paths {
		id, lock, ok := tempID(filepath.Base(path))
		if !ok {
			continue
		}
		files := groups[id]
		if lock {
			files.Lock = path
		} else {
			files.Paths = append(files.Paths, path)
		}
		groups[id] = files
	}
	return groups
}

// listLocked lists the temporary directory by id. d.mu is held.
func (d *tempDir) listLocked() (map[string]TempFiles, error) {
	entries, err := d.in.FS.ReadDir(d.dir)
	return TempsByID(func(yield func(string) bool) {
		for _, e := range entries {
			if !yield(filepath.Join(d.dir, e.Name())) {
				return
			}
		}
	}), err
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
	groups, err := d.listLocked()
	if err != nil {
		return nil
	}
	holding = make(map[string]bool)
	for id, files := range groups {
		if id == d.id {
			holding[id] = d.lock != nil
		} else if d.sweepIDLocked(id, files) {
			holding[id] = true
		}
	}
	return holding
}

// sweepIDLocked removes the stale files of an id, and reports whether its process certainly lives. d.mu
// is held.
func (d *tempDir) sweepIDLocked(id string, files TempFiles) (alive bool) {
	j, _ := d.judgeLocked(id, files, false) // after an error the process may live, and nothing is stale
	defer unlock(j.Held)
	for _, path := range j.Stale {
		if path == files.Lock {
			d.in.removeLock(path)
		} else {
			_ = d.in.FS.Remove(path)
		}
	}
	return j.Alive
}

// sweepSilly removes a file after a silly rename that has not changed for OrphanAge. The time
// of a page is that of its last use.
func (d *tempDir) sweepSilly(path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.reach.learnLocks() == nil {
		d.sweepIDLocked(filepath.Base(path), TempFiles{Paths: []string{path}})
	}
}

// Judgment is what is known of the process of an id.
type Judgment struct {
	Held  io.Closer     // the lock of a dead process, which the caller releases; nil without
	Alive bool          // the process holds its lock
	Idle  time.Duration // if neither Held nor Alive is set: time since the last change, 0 if unknown
	Stale []string      // files that no process needs any more, the lock file last
}

// Judge finds out, for a tool, whether the process of an id lives. With write, Judge may make
// a file to read the filesystem's clock.
func (d *tempDir) Judge(id string, files TempFiles, write bool) (Judgment, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.reach.learnLocks(); err != nil {
		return Judgment{}, err
	}
	return d.judgeLocked(id, files, write)
}

// judgeLocked does as Judge. d.mu is held.
func (d *tempDir) judgeLocked(id string, files TempFiles, write bool) (j Judgment, err error) {
	j.Held, j.Alive, err = d.tryLocked(id, &files)
	switch {
	case err != nil || j.Alive:
		return j, err
	case j.Held != nil:
		// The process may have made files before it died, and after the directory was listed. Without
		// its lock a file would stay for OrphanAge.
		groups, err := d.listLocked()
		if err == nil {
			j.Stale = groups[id].All()
		}
		return j, err
	}
	if write && d.reach.foreign() && d.id == "" {
		if err := d.chooseLocked(); err != nil {
			return j, err
		}
	}
	idle, known := d.idleLocked(files)
	if !known {
		return j, nil
	}
	j.Idle = idle
	if idle > OrphanAge {
		j.Stale = files.Paths
	}
	if files.Lock != "" && d.reach.lockOver(id, idle) {
		j.Stale = append(slices.Clip(j.Stale), files.Lock)
	}
	return j, nil
}

// tryLocked reports whether the lock of an id proves that its process lives. For a process
// proven dead, tryLocked returns the lock, which the caller releases. Without either result
// the lock proves nothing. d.mu is held.
func (d *tempDir) tryLocked(id string, files *TempFiles) (held io.Closer, alive bool, err error) {
	if files.Lock == "" {
		return nil, false, nil
	}
	lock, err := d.in.FS.LockThere(files.Lock)
	switch {
	case errors.Is(classify(err), tier.ErrNotFound): // the process has ended since the directory was listed
		files.Lock = ""
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

// idleLocked returns the time since the last change of an id's files, by the filesystem's
// clock, and false when the clock or the files cannot be read. d.mu is held.
func (d *tempDir) idleLocked(files TempFiles) (time.Duration, bool) {
	var last time.Time
	for _, path := range files.All() {
		if fi, err := d.in.lookAnew(path); err == nil {
			last = tier.Later(last, fi.ModTime())
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
	groups, err := d.listLocked()
	if err != nil {
		return ""
	}
	for id, files := range groups {
		if id == d.id || files.Lock == "" || d.reach.sameSystem(id) {
			continue
		}
		held, alive, err := d.tryLocked(id, &files)
		unlock(held)
		if alive || err != nil { // locks reach the other process
			continue
		}
		if age, known := d.idleLocked(files); known && age < beatAge && !d.reach.ended(id, age) {
			return id
		}
	}
	return ""
}

// Peers counts the living processes with this one's prefix, itself included.
func (t *Tier) Peers() (int, error) {
	d := t.Temp
	if _, err := d.claim(); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lock == nil {
		return 0, fmt.Errorf("count runners in %s: the filesystem has no locks: %w", d.dir, errors.ErrUnsupported)
	}
	groups, err := d.listLocked()
	if err != nil {
		return 0, err
	}
	n := 1
	for id, files := range groups {
		if id == d.id || !strings.HasPrefix(id, d.prefix) {
			continue
		}
		held, alive, err := d.tryLocked(id, &files)
		if err != nil {
			return 0, err
		}
		if alive {
			n++
		}
		if held != nil {
			_ = d.in.FS.Remove(files.Lock)
			unlock(held)
		}
	}
	return n, nil
}
