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
	"github.com/kvtier/kvtier/internal/vfs"
)

// tempDir is a process's share of <root>/v1/tmp. Its files begin with an id: the
// server's prefix, the machine where that has a name, the running system and something
// random. While <id>.lock is locked they belong to a living process. Process ids would
// not do: they mean nothing on another host of a shared root. The times of the lock file,
// and of a file that is made anew while the process writes, say when it was last seen,
// for those to whom its lock says nothing; see sweep.go.
type tempDir struct {
	t      *Tier
	dir    string
	prefix string // of the id

	mu      sync.Mutex
	id      string // "" until the first create
	lock    io.Closer
	beat    time.Time // when the lock file was touched last
	refused time.Time // when the claim was refused last; zero when it was not
	locking *vfs.Locking
	next    atomic.Uint64

	leftMu    sync.Mutex
	left      map[string]int64 // files that could not be removed → bytes, on the disk at most
	leftBytes atomic.Int64     // of all of them

	// Whoever was given up by an isolated tier may come back after it was closed,
	// and must not leave a file then that no lock stands for.
	closed   atomic.Bool
	creating sync.RWMutex // held shared while a file is made
}

// create makes a new temporary file, with a word in its name that says what for.
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
	d.retryLeft()
	path := d.path(id, what)
	var file vfs.File
	err = d.t.inDir(d.dir, func() error {
		file, err = d.t.FS.Create(path)
		return err
	})
	if err != nil {
		d.discard(path, 0) // a full disk may fail Create when the name is there
	}
	return file, path, err
}

// path returns a name that no temporary file has had.
func (d *tempDir) path(id, what string) string {
	return filepath.Join(d.dir, fmt.Sprintf("%s-%s%d%s", id, what, d.next.Add(1), TmpExt))
}

// unused returns the path for a file that is moved here to be discarded.
func (d *tempDir) unused(what string) (string, error) {
	id, err := d.claim()
	if err != nil {
		return "", err
	}
	return d.path(id, what), nil
}

// maxLeft is how many files discard remembers. Beyond it only the cleaning after
// this process's end finds them.
const maxLeft = 1024

// discard removes a file of so many bytes. One that cannot be removed counts, and
// is tried again before the next file is made.
func (d *tempDir) discard(path string, bytes int64) {
	err := d.t.FS.Remove(path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return
	}
	d.leftMu.Lock()
	defer d.leftMu.Unlock()
	if d.left == nil {
		d.left = make(map[string]int64)
	}
	d.leftBytes.Add(pagefile.AlignUp(bytes))
	if len(d.left) < maxLeft {
		d.left[path] = pagefile.AlignUp(bytes)
	}
}

// retryLeft removes what discard could not, as far as it can now.
func (d *tempDir) retryLeft() {
	d.leftMu.Lock()
	defer d.leftMu.Unlock()
	for path, bytes := range d.left {
		if err := d.t.FS.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return // nor the others, probably
		}
		delete(d.left, path)
		d.leftBytes.Add(-bytes)
	}
}

// claim returns the process's id, choosing and locking one the first time, when
// it also removes what dead processes left. It returns ErrNotShared where another
// machine writes and locks do not keep the two apart.
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
		return "", d.notShared()
	}
	if err := d.t.ensureDir(d.dir); err != nil {
		return "", err
	}
	if err := d.learnLocksLocked(); err != nil {
		return "", err
	}
	d.sweepLocked()
	if err := d.chooseLocked(); err != nil {
		return "", err
	}
	if d.foreign() {
		d.sweepLocked() // now that there is a file to tell the time by
	}
	if err := d.yieldLocked(); err != nil {
		return "", err
	}
	return d.id, nil
}

// chooseLocked chooses an id and locks its file. Where there are no locks the file
// is there all the same.
func (d *tempDir) chooseLocked() error {
	if now, err := d.t.FS.Locking(d.dir); err == nil {
		d.locking.Host = now.Host // another where it was mounted again
	}
	for {
		var random [8]byte
		rand.Read(random[:])
		id := d.prefix + d.systemLocked() + "." + hex.EncodeToString(random[:])
		path := filepath.Join(d.dir, id+LockExt)
		lock, err := d.t.FS.Lock(path)
		if errors.Is(err, vfs.ErrLocked) {
			continue // a cleaner was quicker and is about to remove the file
		}
		if vfs.IsNoLocks(err) {
			err = d.makeLockFile(path)
		}
		if err != nil {
			return err
		}
		if _, err := d.t.FS.Lstat(path); err != nil {
			d.unlock(lock)
			if classified := classify(err); !errors.Is(classified, tier.ErrNotFound) {
				return classified
			}
			continue // a cleaner removed the file before it was locked
		}
		// After a power cut, files without their lock file would look like those
		// of a system without locks, and stay for an hour.
		if err := d.t.FS.SyncDir(d.dir); err != nil {
			_ = d.t.FS.Remove(path)
			d.unlock(lock)
			return err
		}
		d.id, d.lock, d.beat = id, lock, time.Now()
		return nil
	}
}

// makeLockFile makes a lock file that cannot be locked, unless it is there: some
// systems find out only after they have made it.
func (d *tempDir) makeLockFile(path string) error {
	f, err := d.t.FS.Create(path)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// unlock gives up a lock, nil for none.
func (d *tempDir) unlock(lock io.Closer) {
	if lock != nil {
		_ = lock.Close()
	}
}

// locked reports whether the claimed id is protected by a lock.
func (d *tempDir) locked() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lock != nil
}

// removeLock removes a lock file once no file it stands for can come back.
func (d *tempDir) removeLock(path string) {
	if d.t.FS.SyncDir(d.dir) == nil {
		_ = d.t.FS.Remove(path)
	}
}

// close removes the lock file, still holding the lock, and before that what
// could not be removed when it was given up. Where that fails once more the lock
// file stays, as after the death of a process, so that the next one cleans.
func (d *tempDir) close() error {
	d.closed.Store(true)
	d.creating.Lock() // until files that are just being made are there
	defer d.creating.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.leaveLocked()
}

// leaveLocked gives up the id.
func (d *tempDir) leaveLocked() error {
	if d.id == "" {
		return nil
	}
	if d.removeOwn() == nil {
		d.removeLock(filepath.Join(d.dir, d.id+LockExt))
	}
	var err error
	if d.lock != nil {
		err = d.lock.Close()
	}
	d.id, d.lock = "", nil
	return err
}

// removeOwn removes the temporary files of this process that are left.
func (d *tempDir) removeOwn() error {
	entries, err := d.t.FS.ReadDir(d.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), d.id+"-") {
			continue
		}
		if rerr := d.t.FS.Remove(filepath.Join(d.dir, e.Name())); !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}
