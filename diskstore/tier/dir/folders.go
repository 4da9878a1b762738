package dir

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// maxKnownDirs bounds the memory of folders.known; beyond maxKnownDirs all entries are dropped.
const maxKnownDirs = 4096

// folders makes the directories below a root.
type folders struct {
	FS         vfs.FS
	Root       string
	createRoot bool

	mu    sync.Mutex
	known map[string]bool // directories that exist → the entry in their parent is durable
}

// missing distinguishes a missing root from a missing page.
func (f *folders) missing(err error) error {
	if vfs.IsStale(err) {
		return fmt.Errorf("%s: its server does not know it any more (%w), mount it again: %w", f.Root, err, tier.ErrRootMissing)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: mount it, or create it with mode 0700: %w", f.Root, tier.ErrRootMissing)
	}
	return err
}

// ensureDir makes dir and its parents and makes their names durable: in a power cut a page is
// lost together with the entry of a directory above. Directories made by another process are
// synced once as well, because that process may have died before its own sync. No lock is held
// during a sync, so that other operations do not wait for the device.
func (f *folders) ensureDir(dir string) error {
	if err := f.makeDir(dir); err != nil {
		return err
	}
	return f.persistDir(dir)
}

// makeDir makes dir and its parents, and syncs nothing.
func (f *folders) makeDir(dir string) error {
	if _, made := f.dirState(dir); made {
		return nil
	}
	inside := len(dir) > len(f.Root)
	if !inside {
		if _, err := f.FS.Lstat(dir); err == nil || !f.createRoot || !errors.Is(err, fs.ErrNotExist) {
			return f.missing(err)
		}
	}
	if err := f.makeDir(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := f.FS.Mkdir(dir); err != nil {
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		info, err := f.FS.Lstat(dir)
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return fmt.Errorf("make directory %s: something else has that name; move it away", dir)
		}
	}
	f.noteDir(dir, false)
	return nil
}

// persistDir makes the names of dir and of its parents durable, up to directories that existed
// before the root.
func (f *folders) persistDir(dir string) error {
	durable, made := f.dirState(dir)
	if durable || !made && len(dir) <= len(f.Root) {
		return nil
	}
	parent := filepath.Dir(dir)
	if err := f.persistDir(parent); err != nil {
		return err
	}
	if err := f.FS.SyncDir(parent); err != nil {
		return err
	}
	f.noteDir(dir, true)
	return nil
}

// dirState reports whether this process has found or made dir, and made its name durable.
func (f *folders) dirState(dir string) (durable, made bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	durable, made = f.known[dir]
	return durable, made
}

// noteDir notes that dir exists.
func (f *folders) noteDir(dir string, durable bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, made := f.known[dir]
	if !made && len(f.known) >= maxKnownDirs {
		clear(f.known)
	}
	f.known[dir] = before || durable
}

// forgetDirs makes ensureDir check every directory again, after a directory was found missing.
func (f *folders) forgetDirs() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.known)
}

// forgetDir makes ensureDir check a directory again that this process has removed.
func (f *folders) forgetDir(dir string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.known, dir)
}

// knowsDir reports whether dir was made durable.
func (f *folders) knowsDir(dir string) bool {
	durable, _ := f.dirState(dir)
	return durable
}

// syncNearest syncs dir or, if dir has been removed, the nearest directory above.
func (f *folders) syncNearest(dir string) error {
	for {
		err := f.FS.SyncDir(dir)
		if !errors.Is(err, fs.ErrNotExist) || len(dir) <= len(f.Root) {
			return err
		}
		dir = filepath.Dir(dir)
	}
}

// removeDir removes a directory without files. A process that has just found the directory makes
// it again.
func (f *folders) removeDir(dir string) {
	if f.FS.Remove(dir) == nil {
		f.forgetDir(dir)
	}
}
