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
	"github.com/kvtier/kvtier/internal/vfs"
)

// rootCheckEvery is how often an operation looks whether a root is still the
// directory that was found safe. An operation that fails as if it were not looks
// at once. Where the filesystem is vfs.Below, which looks at the owner and the mode
// whenever it opens the root, that is never too late.
const rootCheckEvery = time.Second

// rootWatch knows the directory that a tier has found safe. Whoever may write to
// the directory above can put another in its place, a mount may go and come back,
// and a person may change its mode, all while the tier is open.
type rootWatch struct {
	log      *slog.Logger // nil logs nothing
	replaced func()       // called when a claim in the ledger is lost, as in a directory that another takes the place of; may be nil
	until    atomic.Int64 // nothing is looked at before; in ns of clock
	down     atomic.Bool  // it cannot be used
	clock    func() time.Duration

	mu      sync.Mutex
	known   fs.FileInfo // nil before the first check, and when it was gone
	hadBase bool        // it had a folder of pages
	used    bool        // it was found safe before
}

// began is what sinceBegan counts from.
var began = time.Now()

// sinceBegan is the clock of a rootWatch, but in tests. It never jumps.
func sinceBegan() time.Duration { return time.Since(began) }

// checkRoot returns nil when the root may be used. At most every rootCheckEvery it
// looks at it.
func (t *Tier) checkRoot() error {
	w := &t.watch
	if w.fresh() {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fresh() { // another operation has looked meanwhile
		return nil
	}
	return t.recheckRootLocked()
}

// recheckRoot looks at the root now.
func (t *Tier) recheckRoot() error {
	t.watch.mu.Lock()
	defer t.watch.mu.Unlock()
	return t.recheckRootLocked()
}

// fresh reports whether the root was found good a moment ago.
func (w *rootWatch) fresh() bool { return w.clock() < time.Duration(w.until.Load()) }

// recheckRootLocked looks at the root now. Watch.mu is held.
func (t *Tier) recheckRootLocked() error {
	w := &t.watch
	if !w.used && t.createRoot {
		if err := t.ensureDir(t.Root); err != nil {
			return err
		}
	}
	err := t.lookAtRootLocked()
	t.noteRootLocked(err)
	w.until.Store(0)
	if err == nil && w.known != nil {
		w.until.Store(int64(w.clock() + rootCheckEvery))
	}
	return err
}

// lookAtRootLocked checks the root as Open does, and that it is the same as
// before. Another one that is as safe is taken instead.
func (t *Tier) lookAtRootLocked() error {
	w := &t.watch
	info, err := checkRoot(t.FS, t.Root)
	if errors.Is(err, fs.ErrNotExist) && t.createRoot && w.used {
		w.known = nil // nothing is found, and a Put makes it again
		return nil
	}
	if err != nil {
		return t.missing(err)
	}
	_, err = checkRoot(t.FS, t.base)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return t.missing(err)
	}
	hasBase := err == nil
	w.hadBase = w.hadBase || hasBase || t.knowsDir(t.base)
	another := w.used && (w.known == nil || !t.FS.SameFile(w.known, info)) && !t.Temp.isHere()
	if another && w.hadBase && !hasBase && !t.createRoot {
		return fmt.Errorf("%s is another directory than before, without pages: mount it again, or restart to use it: %w", t.Root, tier.ErrRootChanged)
	}
	w.known, w.used = info, true
	if another {
		t.takeOverLocked()
	}
	return nil
}

// takeOverLocked forgets what was known of the directory before.
func (t *Tier) takeOverLocked() {
	t.forgetDirs()
	if t.Temp.reset() && t.watch.log != nil {
		t.watch.log.Warn("kv tier's directory was replaced by another, using that")
	}
	t.claimsAnew()
}

// claimsAnew says that what this process had claimed in the ledger is its claim no
// more.
func (t *Tier) claimsAnew() {
	if t.watch.replaced != nil {
		t.watch.replaced()
	}
}

// noteRootLocked remembers whether the root may be used, and logs changes of that
// for the local tier. The remote tier's breaker does for that one.
func (t *Tier) noteRootLocked(err error) {
	w := &t.watch
	was := w.down.Swap(err != nil)
	if w.log == nil || !t.createRoot || !w.used {
		return
	}
	switch {
	case err != nil && !was:
		w.log.Warn("kv tier's directory cannot be used any more, continuing without it", "error", err)
	case err == nil && was:
		w.log.Info("kv tier's directory can be used again")
	}
}

// classify gives errors of the filesystem the meaning the Tier contract has for
// them.
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

// opFailed gives the error of an operation its meaning. One that may be due to the
// root is the root's when that turns out unfit.
func (t *Tier) opFailed(err error) error {
	if (vfs.IsStale(err) || errors.Is(err, vfs.ErrUnsafe)) && !errors.Is(err, tier.ErrRootMissing) {
		if rootErr := t.recheckRoot(); rootErr != nil {
			return rootErr
		}
	}
	return classify(err)
}

// again runs op on a path. When the path's handle is stale, because another
// machine has removed or replaced what it led to, op runs once more. If it still
// is, nothing is there; if the root's is, the root is missing.
func (t *Tier) again(op func() error) error {
	err := op()
	if !vfs.IsStale(err) {
		return t.opFailed(err)
	}
	if err := t.recheckRoot(); err != nil {
		return err
	}
	if err = op(); vfs.IsStale(err) {
		return fmt.Errorf("%w (%w)", err, tier.ErrNotFound)
	}
	return t.opFailed(err)
}

// isHere reports whether the lock file of this process is below the root: then it
// is the root that was claimed, whatever number the filesystem gives it now.
func (d *tempDir) isHere() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.id == "" {
		return false
	}
	_, err := d.t.FS.Lstat(filepath.Join(d.dir, d.id+LockExt))
	return err == nil
}

// reset gives up what this process has claimed below a root that is another now,
// and reports whether there was anything.
func (d *tempDir) reset() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	claimed := d.id != ""
	if d.lock != nil {
		_ = d.lock.Close()
	}
	d.id, d.lock, d.locking, d.refused = "", nil, nil, time.Time{}
	return claimed
}
