package dir

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// tempDir is the part of <root>/v1/tmp that belongs to one process. Names of its files begin with an id: the
// server's prefix, the machine's name if known, the running system and a random number. While <id>.lock is
// locked, the files belong to a living process; see sweep.go for machines that do not see the lock.
type tempDir struct {
	in     *root
	dir    string
	prefix string // of the id
	left   leftovers
	reach  reach

	mu      sync.Mutex
	id      string // "" until the first claim
	lock    io.Closer
	beat    time.Time // time of the last beat
	refused time.Time // time of the last refused claim; zero if the claim is not refused
	next    atomic.Uint64

	// An operation that an isolated tier gave up may return after close, and must then make no
	// file, because no lock file would protect that file.
	closed   atomic.Bool
	creating sync.RWMutex // held shared while a file is made
}

// create makes a new temporary file with a word for its purpose in the name.
func (d *tempDir) create(what string) (vfs.File, string, error) {
	id, err := d.claim()
	if err != nil {
		return nil, "", err
	}
	d.creating.RLock()
	defer d.creating.RUnlock()
	if d.closed.Load() {
		return nil, "", tier.ErrClosed
	}
	if err := d.left.retry(); err != nil {
		return nil, "", err
	}
	path := d.path(id, what)
	var file vfs.File
	err = d.in.inDir(d.dir, func() error {
		file, err = d.in.FS.Create(path)
		return err
	})
	if err != nil {
		d.left.discard(path, 0) // on a full disk, Create may fail and leave the name
	}
	return file, path, err
}

// path returns a name that no temporary file had before.
func (d *tempDir) path(id, what string) string {
	return filepath.Join(d.dir, fmt.Sprintf("%s-%s%d%s", id, what, d.next.Add(1), TmpExt))
}

// unused returns the path for a file that is renamed into this directory to be discarded.
func (d *tempDir) unused(what string) (string, error) {
	id, err := d.claim()
	if err != nil {
		return "", err
	}
	if err := d.left.retry(); err != nil {
		return "", err
	}
	return d.path(id, what), nil
}

// claim returns the process's id. The first call chooses and locks an id and removes the files
// of dead processes. claim returns tier.ErrNotShared when another machine writes and locks do not
// exclude one of the two.
func (d *tempDir) claim() (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed.Load() {
		return "", tier.ErrClosed
	}
	if d.id != "" {
		if err := d.beatLocked(); err != nil {
			return "", err
		}
	}
	if d.id != "" {
		return d.id, nil
	}
	if !d.refused.IsZero() && time.Since(d.refused) < beatEvery {
		return "", d.reach.notShared()
	}
	if err := d.in.ensureDir(d.dir); err != nil {
		return "", err
	}
	if err := d.reach.learnLocks(); err != nil {
		return "", err
	}
	d.sweepLocked()
	if err := d.chooseLocked(); err != nil {
		return "", err
	}
	if d.reach.foreign() {
		d.sweepLocked() // this process now has a file, which gives the filesystem's time
	}
	if err := d.yieldLocked(); err != nil {
		return "", err
	}
	return d.id, nil
}

// chooseLocked chooses an id and locks its file. Without locks the file exists nevertheless. d.mu is held.
func (d *tempDir) chooseLocked() error {
	if now, err := d.in.FS.Locking(d.dir); err == nil {
		d.reach.locking.Host = now.Host // a new mount may have another name
	}
	for {
		var random [8]byte
		rand.Read(random[:])
		id := d.prefix + d.reach.system() + "." + hex.EncodeToString(random[:])
		path := filepath.Join(d.dir, id+LockExt)
		lock, err := d.in.FS.Lock(path)
		if errors.Is(err, vfs.ErrLocked) {
			continue // a cleaner holds the lock and is about to remove the file
		}
		if vfs.IsNoLocks(err) {
			err = makeLockFile(d.in.FS, path)
		}
		if err != nil {
			return err
		}
		if _, err := d.in.FS.Lstat(path); err != nil {
			unlock(lock)
			if classified := classify(err); !errors.Is(classified, tier.ErrNotFound) {
				return classified
			}
			continue // a cleaner removed the file before it was locked
		}
		// After a power cut, files without their lock file would look like files of a system
		// without locks, and stay for OrphanAge.
		if err := d.in.FS.SyncDir(d.dir); err != nil {
			_ = d.in.FS.Remove(path)
			unlock(lock)
			return err
		}
		d.id, d.lock, d.beat = id, lock, time.Now()
		return nil
	}
}

// makeLockFile makes a lock file that cannot be locked, unless the file exists: some systems
// make the file before locking fails.
func makeLockFile(fsys vfs.FS, path string) error {
	f, err := fsys.Create(path)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// unlock releases a lock, which may be nil.
func unlock(lock io.Closer) {
	if lock != nil {
		_ = lock.Close()
	}
}

// removeLock removes a lock file after no file that the lock file protects can come back.
func (r *root) removeLock(path string) {
	if r.FS.SyncDir(filepath.Dir(path)) == nil {
		_ = r.FS.Remove(path)
	}
}

// close removes the files that discard could not remove, then the lock file, while the lock is held. When a
// removal fails again, the lock file stays, as after the death of a process, and the next process cleans up.
func (d *tempDir) close() error {
	d.closed.Store(true)
	d.creating.Lock() // wait for files that are being made
	defer d.creating.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.leaveLocked()
}

// leaveLocked gives up the id. d.mu is held.
func (d *tempDir) leaveLocked() error {
	if d.id == "" {
		return nil
	}
	if d.removeOwn() == nil {
		d.in.removeLock(filepath.Join(d.dir, d.id+LockExt))
	}
	var err error
	if d.lock != nil {
		err = d.lock.Close()
	}
	d.id, d.lock = "", nil
	return err
}

func (d *tempDir) removeOwn() error {
	groups, err := d.listLocked()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, path := range groups[d.id].Paths {
		if rerr := d.in.FS.Remove(path); !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

type leftovers struct {
	in    *root
	bytes atomic.Int64 // of all of them, on the disk, at most

	mu    sync.Mutex
	files map[string]int64 // their size on the disk, at most
}

// maxLeft is the number of files that could not be removed with which a process makes no
// further one. A few more may be left by files that are being made.
const maxLeft = 256

// discard removes a file of the given size in bytes. A file that cannot be removed is counted,
// and removed again before the next file is made.
func (l *leftovers) discard(path string, bytes int64) {
	err := l.in.FS.Remove(path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes.Add(pagefile.AlignUp(bytes) - l.files[path])
	l.files[path] = pagefile.AlignUp(bytes)
}

// retry removes files that discard could not remove, until the first failure. retry
// returns the failure while there are maxLeft files.
func (l *leftovers) retry() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for path, bytes := range l.files {
		if err := l.in.FS.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			if len(l.files) < maxLeft {
				return nil // the other files would probably fail, too
			}
			return fmt.Errorf("%d temporary files cannot be removed: %w", len(l.files), err)
		}
		delete(l.files, path)
		l.bytes.Add(-bytes)
	}
	return nil
}

// isSilly reports whether an NFS client gives such a name to a file that is removed or replaced while
// a process has it open: ".nfs" and hexadecimal digits, on macOS and the BSDs with dots between. The
// client removes the file when it is closed; one that dies leaves it behind, as a temporary file of an
// unknown process. Where the file is removed under a reader, the reader gets a vfs.IsStale error: a miss.
func isSilly(base string) bool {
	number, ok := strings.CutPrefix(base, ".nfs")
	return ok && number != "" && strings.Trim(number, "0123456789abcdefABCDEF.") == ""
}

// tempID returns the id of the process to which a temporary file belongs, and whether the file
// is that process's lock. The id of a file after a silly rename is the file's own name, because
// its process is not known. tempID returns false for the name of no temporary file.
func tempID(base string) (id string, lock, ok bool) {
	if id, ok := strings.CutSuffix(base, LockExt); ok {
		return id, true, true
	}
	if isSilly(base) {
		return base, false, true
	}
	id, _, ok = strings.Cut(base, "-")
	return id, false, ok && strings.HasSuffix(base, TmpExt)
}
