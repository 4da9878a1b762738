package dir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// Tier is a tier in a directory: on the local disk, or on anything mounted. Methods wait as
// long as the filesystem does.
type Tier struct {
	FS         vfs.FS
	Root, base string // base is <root>/v1
	createRoot bool
	shared     bool // other machines may use the directory: a remote tier

	watch  rootWatch
	closed atomic.Bool
	Temp   tempDir

	dirMu sync.Mutex
	known map[string]bool // directories that exist → the entry in their parent is durable

	renameMu sync.Mutex // makes "did the file exist" exact within the process
	ledgerMu sync.Mutex // one user of the ledger lock at a time in this process, without polling
	moved    atomic.Uint64
}

// maxKnownDirs bounds the memory of Tier.known; beyond maxKnownDirs all entries are dropped.
const maxKnownDirs = 4096

// Options are the options of a tier in a directory.
type Options struct {
	Create   bool          // make a missing root
	Shared   bool          // other machines may use the directory: a remote tier
	Prefix   string        // of the id by which other processes know this one
	Timeout  time.Duration // bound of one filesystem operation; 0 for none
	Log      *slog.Logger  // may be nil
	Replaced func()        // called after this process lost its claim in the ledger; may be nil
}

// New returns the tier in root. A nil fs means the operating system's filesystem.
func New(fs vfs.FS, root string, opt Options) *Tier {
	if fs == nil {
		fs = vfs.Below(root)
	}
	t := &Tier{
		FS: fs, Root: root, base: filepath.Join(root, versionDir),
		createRoot: opt.Create, shared: opt.Shared, known: make(map[string]bool),
	}
	t.watch.log, t.watch.replaced, t.watch.clock = opt.Log, opt.Replaced, sinceBegan
	t.Temp = tempDir{t: t, dir: filepath.Join(t.base, tmpDir), prefix: opt.Prefix}
	if opt.Timeout > 0 {
		t.FS = vfs.Bound(t.FS, root, opt.Timeout)
	}
	return t
}

// Down reports whether the root was unusable at its last check.
func (t *Tier) Down() bool { return t.watch.down.Load() }

// Claim announces this process below the root and removes the files of dead processes.
func (t *Tier) Claim(ctx context.Context) error {
	if err := t.Ready(ctx); err != nil {
		return classify(err)
	}
	_, err := t.Temp.claim()
	return classify(err)
}

// Ready refuses an unsafe root before any read from the root or write to it.
func (t *Tier) Ready(ctx context.Context) error {
	if t.closed.Load() {
		return tier.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return t.checkRoot()
}

// missing distinguishes a missing root from a missing page.
func (t *Tier) missing(err error) error {
	if vfs.IsStale(err) {
		return fmt.Errorf("%s: its server does not know it any more (%w), mount it again: %w", t.Root, err, tier.ErrRootMissing)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: mount it, or create it with mode 0700: %w", t.Root, tier.ErrRootMissing)
	}
	return err
}

// Path returns the absolute path of a file.
func (t *Tier) Path(name pagefile.Name) string { return filepath.Join(t.base, relPath(name)) }

// ensureDir makes dir and its parents and makes their names durable: in a power cut a page is
// lost together with the entry of a directory above. Directories made by another process are
// synced once as well, because that process may have died before its own sync. No lock is held
// during a sync, so that other operations do not wait for the device.
func (t *Tier) ensureDir(dir string) error {
	if err := t.makeDir(dir); err != nil {
		return err
	}
	return t.persistDir(dir)
}

// makeDir makes dir and its parents, and syncs nothing.
func (t *Tier) makeDir(dir string) error {
	if _, made := t.dirState(dir); made {
		return nil
	}
	inside := len(dir) > len(t.Root)
	if !inside {
		if _, err := t.FS.Lstat(dir); err == nil || !t.createRoot || !errors.Is(err, fs.ErrNotExist) {
			return t.missing(err)
		}
	}
	if err := t.makeDir(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := t.FS.Mkdir(dir); err != nil {
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		info, err := t.FS.Lstat(dir)
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return fmt.Errorf("make directory %s: something else has that name; move it away", dir)
		}
	}
	t.noteDir(dir, false)
	return nil
}

// persistDir makes the names of dir and of its parents durable, up to directories that existed
// before the root.
func (t *Tier) persistDir(dir string) error {
	durable, made := t.dirState(dir)
	if durable || !made && len(dir) <= len(t.Root) {
		return nil
	}
	parent := filepath.Dir(dir)
	if err := t.persistDir(parent); err != nil {
		return err
	}
	if err := t.FS.SyncDir(parent); err != nil {
		return err
	}
	t.noteDir(dir, true)
	return nil
}

// dirState reports whether this process has found or made dir, and made its name durable.
func (t *Tier) dirState(dir string) (durable, made bool) {
	t.dirMu.Lock()
	defer t.dirMu.Unlock()
	durable, made = t.known[dir]
	return durable, made
}

// noteDir notes that dir exists.
func (t *Tier) noteDir(dir string, durable bool) {
	t.dirMu.Lock()
	defer t.dirMu.Unlock()
	before, made := t.known[dir]
	if !made && len(t.known) >= maxKnownDirs {
		clear(t.known)
	}
	t.known[dir] = before || durable
}

// forgetDirs makes ensureDir check every directory again, after a directory was found missing.
func (t *Tier) forgetDirs() {
	t.dirMu.Lock()
	defer t.dirMu.Unlock()
	clear(t.known)
}

// forgetDir makes ensureDir check a directory again that this process has removed.
func (t *Tier) forgetDir(dir string) {
	t.dirMu.Lock()
	defer t.dirMu.Unlock()
	delete(t.known, dir)
}

// knowsDir reports whether dir was made durable.
func (t *Tier) knowsDir(dir string) bool {
	durable, _ := t.dirState(dir)
	return durable
}

// inDir makes dir, durably, and runs op, which needs dir. If dir has been removed meanwhile,
// inDir makes dir and runs op once more.
func (t *Tier) inDir(dir string, op func() error) error { return t.inside(dir, t.ensureDir, op) }

// inNewDir does as inDir, and syncs nothing.
func (t *Tier) inNewDir(dir string, op func() error) error { return t.inside(dir, t.makeDir, op) }

// inside runs op in a directory that prepare makes.
func (t *Tier) inside(dir string, prepare func(string) error, op func() error) error {
	err := prepare(dir)
	if err == nil {
		err = op()
	}
	if errors.Is(err, fs.ErrNotExist) || vfs.IsStale(err) {
		if err := t.recheckRoot(); err != nil {
			return err
		}
		t.forgetDirs()
		if err := prepare(dir); err != nil {
			return err
		}
		if err := t.checkRoot(); err != nil { // the root may have been made by prepare
			return err
		}
		err = op()
	}
	return err
}

// Info describes a regular file, and refuses any other.
func (t *Tier) Info(name pagefile.Name, path string, fi fs.FileInfo) (tier.Info, error) {
	if !fi.Mode().IsRegular() {
		return tier.Info{}, &fs.PathError{Op: "stat", Path: path, Err: vfs.ErrNotRegular}
	}
	return tier.Info{Name: name, Bytes: fi.Size(), Physical: t.FS.PhysicalBytes(fi), Used: fi.ModTime()}, nil
}

func (t *Tier) Find(ctx context.Context, names []pagefile.Name, leading bool) ([]tier.Info, error) {
	infos := make([]tier.Info, len(names))
	for i, name := range names {
		info, err := t.stat(ctx, name)
		switch {
		case err == nil:
			infos[i] = info
		case !errors.Is(err, tier.ErrNotFound):
			return infos, err
		case leading:
			return infos, nil
		}
	}
	return infos, nil
}

// stat describes one file.
func (t *Tier) stat(ctx context.Context, name pagefile.Name) (info tier.Info, err error) {
	if err := t.Ready(ctx); err != nil {
		return info, classify(err)
	}
	path := t.Path(name)
	err = t.again(func() error {
		fi, err := t.FS.Lstat(path)
		if err == nil {
			info, err = t.Info(name, path, fi)
		}
		return err
	})
	return info, err
}

func (t *Tier) Open(ctx context.Context, name pagefile.Name, anew bool) (blob tier.Blob, err error) {
	if err := t.Ready(ctx); err != nil {
		return nil, classify(err)
	}
	if anew {
		_ = t.FS.Uncache(t.Path(name)) // after an error the file is opened anew, too
	}
	err = t.again(func() error {
		blob, err = OpenFile(t.FS, t.Path(name), name)
		return err
	})
	return blob, err
}

func (t *Tier) Remove(ctx context.Context, judged tier.Info) (bool, error) {
	if err := t.Ready(ctx); err != nil {
		return false, classify(err)
	}
	err := t.again(func() error { return t.removeJudged(ctx, judged) })
	if err != nil {
		if errors.Is(err, tier.ErrNotFound) {
			err = nil
		}
		return false, err
	}
	if name := judged.Name; name.Parent != (pagefile.Key{}) {
		t.removeDir(filepath.Join(t.base, oldTailDir(name.Fingerprint, name.Parent)))
	}
	return true, nil
}

func (t *Tier) SyncRemoved(ctx context.Context, names []pagefile.Name) error {
	if err := t.Ready(ctx); err != nil {
		return classify(err)
	}
	dirs := make(map[string]bool)
	for _, name := range names {
		dirs[filepath.Dir(t.Path(name))] = true
	}
	if t.shared { // removeJudged has moved the files to the temporary directory
		dirs[t.Temp.dir] = true
	}
	for dir := range dirs {
		if err := t.syncNearest(dir); err != nil {
			return t.opFailed(err)
		}
	}
	return nil
}

// syncNearest syncs dir or, if dir has been removed, the nearest directory above.
func (t *Tier) syncNearest(dir string) error {
	for {
		err := t.FS.SyncDir(dir)
		if !errors.Is(err, fs.ErrNotExist) || len(dir) <= len(t.Root) {
			return err
		}
		dir = filepath.Dir(dir)
	}
}

func (t *Tier) Touch(ctx context.Context, name pagefile.Name, used time.Time) error {
	if err := t.Ready(ctx); err != nil {
		return classify(err)
	}
	return t.again(func() error { return t.FS.Chtimes(t.Path(name), used, used) })
}

func (t *Tier) Space(ctx context.Context) (vfs.Space, error) {
	if err := t.Ready(ctx); err != nil {
		return vfs.Space{}, classify(err)
	}
	space, err := t.FS.Space(t.Root)
	return space, t.opFailed(err)
}

func (t *Tier) Lock(ctx context.Context) (func(), error) {
	if err := t.Ready(ctx); err != nil {
		return nil, classify(err)
	}
	if _, err := t.Temp.claim(); errors.Is(err, tier.ErrNotShared) {
		return nil, fmt.Errorf("%w (%w)", err, tier.ErrLocked)
	}
	var release func()
	err := t.inDir(t.base, func() error {
		lock, err := t.FS.Lock(filepath.Join(t.base, collectLock))
		switch {
		case err == nil:
			release = func() { lock.Close() }
		case vfs.IsNoLocks(err):
			// Two processes that collect at the same time remove too much, at worst.
			release, err = func() {}, nil
		}
		return err
	})
	return release, t.opFailed(err)
}

func (t *Tier) Left() int64 { return t.Temp.leftBytes.Load() }

// Close removes the tier's files from the temporary directory. Uploads that are still running
// fail.
func (t *Tier) Close() error {
	if t.closed.Swap(true) {
		return nil
	}
	return t.Temp.close()
}

// Blob is a Blob of one open file.
type Blob struct {
	File vfs.File
	info tier.Info
}

// OpenFile opens path, the file of name.
func OpenFile(fsys vfs.FS, path string, name pagefile.Name) (tier.Blob, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, classify(err)
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, classify(err)
	}
	return &Blob{File: f, info: tier.Info{
		Name: name, Bytes: fi.Size(), Physical: fsys.PhysicalBytes(fi), Used: fi.ModTime(),
	}}, nil
}

func (b *Blob) Info() tier.Info { return b.info }

func (b *Blob) Size() int64 { return b.info.Bytes }

func (b *Blob) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(p) == 0 {
		return nil
	}
	n, err := b.File.ReadAt(p, off)
	if n == len(p) {
		return nil // io.EOF may come with the last byte
	}
	if vfs.IsStale(err) {
		return fmt.Errorf("%w (%w)", err, tier.ErrStale)
	}
	return err
}

// Close ignores the error: nothing was written.
func (b *Blob) Close() { _ = b.File.Close() }
