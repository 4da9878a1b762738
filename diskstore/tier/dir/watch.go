package dir

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// rootCheckEvery is the interval at which operations check whether a root is still the directory that
// was found safe. An operation whose error suggests another directory checks at once. With vfs.Below,
// which checks the owner and the mode at each opening of the root, the interval is never too long.
const rootCheckEvery = time.Second

// rootWatch knows the directory that a tier has found safe. While the tier is open, a user
// with the right to write to the directory above can put another directory in its place, a
// mount may disappear and return, and a person may change the directory's mode.
type rootWatch struct {
	log      *slog.Logger // may be nil
	replaced func()       // called when a claim in the ledger is lost, for example because the directory was replaced; may be nil
	until    atomic.Int64 // no check is due before; ns of clock
	down     atomic.Bool  // the root cannot be used
	clock    func() time.Duration

	mu      sync.Mutex
	known   fs.FileInfo // nil before the first check, and while the directory is missing
	hadBase bool        // the directory had a folder of pages
	used    bool        // the directory was found safe before
}

// began is the zero of sinceBegan.
var began = time.Now()

// sinceBegan is the clock of a rootWatch outside tests. The clock never jumps.
func sinceBegan() time.Duration { return time.Since(began) }

// checkRoot returns nil when the root may be used. checkRoot reads the directory at most once
// per rootCheckEvery.
func (r *root) checkRoot() error {
	w := &r.watch
	if w.fresh() {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fresh() { // another operation has checked meanwhile
		return nil
	}
	return r.recheckRootLocked()
}

func (r *root) recheckRoot() error {
	r.watch.mu.Lock()
	defer r.watch.mu.Unlock()
	return r.recheckRootLocked()
}

// fresh reports whether the root was found good within rootCheckEvery.
func (w *rootWatch) fresh() bool { return w.clock() < time.Duration(w.until.Load()) }

// recheckRootLocked checks the root now. watch.mu is held.
func (r *root) recheckRootLocked() error {
	w := &r.watch
	if !w.used && r.createRoot {
		if err := r.ensureDir(r.Root); err != nil {
			return err
		}
	}
	err := r.lookAtRootLocked()
	r.noteRootLocked(err)
	w.until.Store(0)
	if err == nil && w.known != nil {
		w.until.Store(int64(w.clock() + rootCheckEvery))
	}
	return err
}

// lookAtRootLocked makes the checks of Open, and checks that the root is the same directory as
// before. Another directory that is as safe replaces the previous one. watch.mu is held.
func (r *root) lookAtRootLocked() error {
	w := &r.watch
	info, err := checkRoot(r.FS, r.Root)
	if errors.Is(err, fs.ErrNotExist) && r.createRoot && w.used {
		w.known = nil // look-ups find nothing, and a Put makes the directory again
		return nil
	}
	if err != nil {
		return r.missing(err)
	}
	_, err = checkRoot(r.FS, r.base)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return r.missing(err)
	}
	hasBase := err == nil
	madeBase, _ := r.dirState(r.base)
	w.hadBase = w.hadBase || hasBase || madeBase
	another := w.used && (w.known == nil || !r.FS.SameFile(w.known, info)) && !r.isHere()
	if another && w.hadBase && !hasBase && !r.createRoot {
		return fmt.Errorf("%s is another directory than before, without pages: mount it again, or restart to use it: %w", r.Root, tier.ErrRootChanged)
	}
	w.known, w.used = info, true
	if another {
		r.takeOverLocked()
	}
	return nil
}

// takeOverLocked drops the state of the previous directory. watch.mu is held.
func (r *root) takeOverLocked() {
	r.forgetDirs()
	if r.reset() && r.watch.log != nil {
		r.watch.log.Warn("kv tier's directory was replaced by another, using that")
	}
	r.claimsAnew()
}

// claimsAnew reports that this process has lost its claim in the ledger.
func (r *root) claimsAnew() {
	if r.watch.replaced != nil {
		r.watch.replaced()
	}
}

// noteRootLocked stores whether the root may be used, and logs each change for the local tier.
// For the remote tier its breaker logs changes. watch.mu is held.
func (r *root) noteRootLocked(err error) {
	w := &r.watch
	was := w.down.Swap(err != nil)
	if w.log == nil || !r.createRoot || !w.used {
		return
	}
	switch {
	case err != nil && !was:
		w.log.Warn("kv tier's directory cannot be used any more, continuing without it", "error", err)
	case err == nil && was:
		w.log.Info("kv tier's directory can be used again")
	}
}

// classify adds the error of the Tier contract to an error of the filesystem.
func classify(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, tier.ErrNotFound) || errors.Is(err, tier.ErrNoSpace) || errors.Is(err, tier.ErrLocked):
		return err
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, vfs.ErrNotRegular):
		return fmt.Errorf("%w (%w)", err, tier.ErrNotFound)
	case vfs.IsNoSpace(err):
		return fmt.Errorf("%w (%w)", err, tier.ErrNoSpace)
	case errors.Is(err, vfs.ErrLocked):
		return fmt.Errorf("%w (%w)", err, tier.ErrLocked)
	}
	return err
}

// opFailed classifies the error of an operation. If the error suggests a problem of the root
// and a check of the root fails, opFailed returns the root's error.
func (r *root) opFailed(err error) error {
	if (vfs.IsStale(err) || errors.Is(err, vfs.ErrUnsafe)) && !errors.Is(err, tier.ErrRootMissing) {
		if rootErr := r.recheckRoot(); rootErr != nil {
			return rootErr
		}
	}
	return classify(err)
}

// again runs op on a path. When the path's handle is stale, because another machine has removed or replaced
// the file, op runs once more. A file that is still stale is not found; a stale root is a missing root.
func (r *root) again(op func() error) error {
	err := op()
	if !vfs.IsStale(err) {
		return r.opFailed(err)
	}
	if err := r.recheckRoot(); err != nil {
		return err
	}
	if err = op(); vfs.IsStale(err) {
		return fmt.Errorf("%w (%w)", err, tier.ErrNotFound)
	}
	return r.opFailed(err)
}

// isHere reports whether the lock file of this process is below the root. If so, the root is
// the claimed directory, even if the filesystem gives the directory another number now.
func (d *tempDir) isHere() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.id == "" {
		return false
	}
	_, err := d.in.FS.Lstat(filepath.Join(d.dir, d.id+LockExt))
	return err == nil
}

// reset gives up the claim of this process after the root was replaced, and reports whether
// there was a claim.
func (d *tempDir) reset() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	claimed := d.id != ""
	if d.lock != nil {
		_ = d.lock.Close()
	}
	d.id, d.lock, d.reach.locking, d.refused = "", nil, nil, time.Time{}
	return claimed
}
