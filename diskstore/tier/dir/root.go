package dir

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// root is the directory of a tier. Its parts see the root and what else they need, and not the Tier.
type root struct {
	folders
	base   string // <root>/v1
	shared bool   // other machines may use the directory: a remote tier
	closed atomic.Bool
	watch  rootWatch

	// isHere and reset are those of the temporary directory.
	isHere, reset func() bool
}

func newRoot(fsys vfs.FS, path string, opt Options) *root {
	r := &root{
		folders: folders{FS: fsys, Root: path, createRoot: opt.Create, known: make(map[string]bool)},
		base:    filepath.Join(path, versionDir), shared: opt.Shared,
	}
	r.watch.log, r.watch.replaced, r.watch.clock = opt.Log, opt.Replaced, sinceBegan
	return r
}

// Down reports whether the root was unusable at its last check.
func (r *root) Down() bool { return r.watch.down.Load() }

// Ready refuses an unsafe root before any read from the root or write to it.
func (r *root) Ready(ctx context.Context) error {
	if r.closed.Load() {
		return tier.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return r.checkRoot()
}

// run runs op, which needs a safe root; see again.
func (r *root) run(ctx context.Context, op func() error) error {
	if err := r.Ready(ctx); err != nil {
		return classify(err)
	}
	return r.again(op)
}

// Path returns the absolute path of a file.
func (r *root) Path(name pagefile.Name) string { return filepath.Join(r.base, relPath(name)) }

// inDir makes dir, durably, and runs op, which needs dir. If dir has been removed meanwhile,
// inDir makes dir and runs op once more.
func (r *root) inDir(dir string, op func() error) error { return r.inside(dir, r.ensureDir, op) }

// inNewDir does as inDir, and syncs nothing.
func (r *root) inNewDir(dir string, op func() error) error { return r.inside(dir, r.makeDir, op) }

// inside runs op in a directory that prepare makes.
func (r *root) inside(dir string, prepare func(string) error, op func() error) error {
	err := prepare(dir)
	if err == nil {
		err = op()
	}
	if errors.Is(err, fs.ErrNotExist) || vfs.IsStale(err) {
		if err := r.recheckRoot(); err != nil {
			return err
		}
		r.forgetDirs()
		if err := prepare(dir); err != nil {
			return err
		}
		if err := r.checkRoot(); err != nil { // the root may have been made by prepare
			return err
		}
		err = op()
	}
	return err
}

// ReadDir lists a directory; a missing directory is empty.
func (r *root) ReadDir(dir string) ([]fs.DirEntry, error) {
	var entries []fs.DirEntry
	err := r.again(func() (err error) {
		entries, err = r.FS.ReadDir(dir)
		return err
	})
	if errors.Is(err, tier.ErrNotFound) {
		return nil, nil
	}
	return entries, err
}

// appendShards appends the shard directories in dir; like has every field except First.
func (r *root) appendShards(shards []tier.Shard, dir string, like tier.Shard) ([]tier.Shard, error) {
	entries, err := r.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() && isShard(e.Name()) {
			first, _ := hex.DecodeString(e.Name()) // isShard has checked the digits
			like.First = first[0]
			shards = append(shards, like)
		}
	}
	return shards, err
}

// maxKnownDirs bounds the memory of folders.known; beyond maxKnownDirs all entries are dropped.
const maxKnownDirs = 4096

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

// removeDir removes a directory without files. A process that has just found the directory makes it again.
func (f *folders) removeDir(dir string) {
	if f.FS.Remove(dir) == nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.known, dir)
	}
}

// CheckRoot returns nil when path is a directory in which this process may keep prompts: not a
// symbolic link, owned by this user, and not writable by its group or by others. Otherwise
// CheckRoot returns tier.ErrRootSymlink, tier.ErrRootNotDir, tier.ErrRootOwner or tier.ErrRootMode;
// fs.ErrNotExist for a missing directory; or an error of the filesystem. On Windows, where files
// have no such owners, only the first two are checked.
func CheckRoot(fsys vfs.FS, path string) error {
	_, err := checkRoot(fsys, path)
	return err
}

// checkRoot does as CheckRoot and describes a safe root.
func checkRoot(fsys vfs.FS, path string) (fs.FileInfo, error) {
	// With a trailing slash the system would follow a link.
	path = filepath.Clean(path)
	info, err := fsys.Lstat(path)
	if err != nil {
		return nil, fmt.Errorf("check root: %w", err)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil, fmt.Errorf("check root %s: name the directory it points to instead: %w", path, tier.ErrRootSymlink)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("check root %s: choose another path: %w", path, tier.ErrRootNotDir)
	}
	uid, ok := fsys.Owner(info)
	if !ok {
		return info, nil
	}
	if uid != os.Geteuid() {
		return nil, fmt.Errorf("check root %s: owner is user %d, this is user %d; choose a directory of your own: %w",
			path, uid, os.Geteuid(), tier.ErrRootOwner)
	}
	if perm := info.Mode().Perm(); perm&0o022 != 0 {
		return nil, fmt.Errorf("check root %s: mode is %04o; run chmod 700 %s: %w", path, perm, path, tier.ErrRootMode)
	}
	return info, nil
}
