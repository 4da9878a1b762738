package diskstore

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

	"github.com/kvtier/kvtier/internal/vfs"
)

// dirTier is a Tier in a directory: the local disk, or anything mounted. Its
// methods wait as long as the filesystem does.
type dirTier struct {
	fs         vfs.FS
	root, base string // base is <root>/v1
	createRoot bool
	shared     bool // other machines may use it: it is a remote tier

	watch  rootWatch
	closed atomic.Bool
	temp   tempDir

	dirMu sync.Mutex
	known map[string]bool // directories whose entry in their parent is durable

	renameMu sync.Mutex // makes "was it there before" exact within the process
	ledgerMu sync.Mutex // keeps this process from polling its own ledger lock
	moved    atomic.Uint64
}

// maxKnownDirs bounds the memory of dirTier.known; beyond it all are forgotten.
const maxKnownDirs = 4096

// dirOptions says how a directory is used.
type dirOptions struct {
	Create   bool          // the root is made when it is missing
	Shared   bool          // other machines may use it: it is a remote tier
	Prefix   string        // of the name by which other processes know this one
	Timeout  time.Duration // of one operation of the filesystem; 0 for any
	Log      *slog.Logger  // nil logs nothing
	Replaced func()        // called when the claim of this process in the ledger is lost; nil calls nobody
}

// newDirTier returns the tier in root. A nil fs means the operating system's.
func newDirTier(fs vfs.FS, root string, opt dirOptions) *dirTier {
	if fs == nil {
		fs = vfs.Below(root)
	}
	t := &dirTier{
		fs: fs, root: root, base: filepath.Join(root, versionDir),
		createRoot: opt.Create, shared: opt.Shared, known: make(map[string]bool),
	}
	t.watch.log, t.watch.replaced, t.watch.clock = opt.Log, opt.Replaced, sinceBegan
	t.temp = tempDir{t: t, dir: filepath.Join(t.base, tmpDir), prefix: opt.Prefix}
	if opt.Timeout > 0 {
		t.setTimeout(opt.Timeout)
	}
	return t
}

// setTimeout is dirOptions.Timeout for the operations to come. Nothing else may use the
// tier meanwhile.
func (t *dirTier) setTimeout(d time.Duration) { t.fs = vfs.Bound(t.fs, t.root, d) }

// down reports whether the root could not be used when it was looked at last.
func (t *dirTier) down() bool { return t.watch.down.Load() }

// claim makes this process known below the root, and removes the files of dead ones.
func (t *dirTier) claim(ctx context.Context) error {
	if err := t.ready(ctx); err != nil {
		return classify(err)
	}
	_, err := t.temp.claim()
	return classify(err)
}

// ready refuses an unsafe root before anything is read from or written to it.
func (t *dirTier) ready(ctx context.Context) error {
	if t.closed.Load() {
		return ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return t.checkRoot()
}

// missing keeps "the root is not there" from reading as "the page is not there".
func (t *dirTier) missing(err error) error {
	if vfs.IsStale(err) {
		return fmt.Errorf("%s: its server does not know it any more (%w), mount it again: %w", t.root, err, ErrRootMissing)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: mount it, or create it with mode 0700: %w", t.root, ErrRootMissing)
	}
	return err
}

// path returns the absolute path of a file.
func (t *dirTier) path(name Name) string { return filepath.Join(t.base, relPath(name)) }

// ensureDir makes dir and its parents, and makes their names durable: a page is
// lost in a power cut when the entry of a directory above it is. Directories
// made by another process that may have died before its own sync are therefore
// synced as well, once.
func (t *dirTier) ensureDir(dir string) error {
	t.dirMu.Lock()
	defer t.dirMu.Unlock()
	return t.ensureDirLocked(dir)
}

func (t *dirTier) ensureDirLocked(dir string) error {
	if t.known[dir] {
		return nil
	}
	inside := len(dir) > len(t.root)
	if !inside {
		if _, err := t.fs.Lstat(dir); err == nil || !t.createRoot || !errors.Is(err, fs.ErrNotExist) {
			return t.missing(err)
		}
	}
	parent := filepath.Dir(dir)
	if err := t.ensureDirLocked(parent); err != nil {
		return err
	}
	if err := t.fs.Mkdir(dir); err != nil {
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		info, err := t.fs.Lstat(dir)
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return fmt.Errorf("make directory %s: something else has that name; move it away", dir)
		}
	}
	if err := t.fs.SyncDir(parent); err != nil {
		return err
	}
	if len(t.known) >= maxKnownDirs {
		clear(t.known)
	}
	t.known[dir] = true
	return nil
}

// forgetDirs makes ensureDir look again, after a directory turned out missing.
func (t *dirTier) forgetDirs() {
	t.dirMu.Lock()
	defer t.dirMu.Unlock()
	clear(t.known)
}

// knowsDir reports whether dir was made durable.
func (t *dirTier) knowsDir(dir string) bool {
	t.dirMu.Lock()
	defer t.dirMu.Unlock()
	return t.known[dir]
}

// inDir runs op, which needs dir, making dir first and once more when it has
// been removed meanwhile.
func (t *dirTier) inDir(dir string, op func() error) error {
	err := t.ensureDir(dir)
	if err == nil {
		err = op()
	}
	if errors.Is(err, fs.ErrNotExist) || vfs.IsStale(err) {
		if err := t.recheckRoot(); err != nil {
			return err
		}
		t.forgetDirs()
		if err := t.ensureDir(dir); err != nil {
			return err
		}
		if err := t.checkRoot(); err != nil { // which may have been made just now
			return err
		}
		err = op()
	}
	return err
}

// info describes a regular file, and refuses anything else.
func (t *dirTier) info(name Name, path string, fi fs.FileInfo) (Info, error) {
	if !fi.Mode().IsRegular() {
		return Info{}, &fs.PathError{Op: "stat", Path: path, Err: vfs.ErrNotRegular}
	}
	return Info{Name: name, Bytes: fi.Size(), Physical: t.fs.PhysicalBytes(fi), Used: fi.ModTime()}, nil
}

func (t *dirTier) Stat(ctx context.Context, name Name) (Info, error) {
	if err := t.ready(ctx); err != nil {
		return Info{}, classify(err)
	}
	path := t.path(name)
	var info Info
	err := t.again(func() error {
		fi, err := t.fs.Lstat(path)
		if err == nil {
			info, err = t.info(name, path, fi)
		}
		return err
	})
	return info, err
}

func (t *dirTier) Leading(ctx context.Context, names []Name) ([]Info, error) {
	var infos []Info
	for _, name := range names {
		info, err := t.Stat(ctx, name)
		if errors.Is(err, ErrNotFound) {
			break
		}
		if err != nil {
			return infos, err
		}
		infos = append(infos, info)
	}
	return infos, nil
}

func (t *dirTier) Open(ctx context.Context, name Name) (Blob, error) {
	if err := t.ready(ctx); err != nil {
		return nil, classify(err)
	}
	return t.open(name)
}

// open opens the file of a name.
func (t *dirTier) open(name Name) (blob Blob, err error) {
	err = t.again(func() error {
		blob, err = openFileBlob(t.fs, t.path(name), name)
		return err
	})
	return blob, err
}

func (t *dirTier) Reopen(ctx context.Context, name Name) (Blob, error) {
	if err := t.ready(ctx); err != nil {
		return nil, classify(err)
	}
	_ = t.fs.Uncache(t.path(name)) // whatever comes of it, the file is opened anew
	return t.open(name)
}

func (t *dirTier) Remove(ctx context.Context, judged Info) (bool, error) {
	if err := t.ready(ctx); err != nil {
		return false, classify(err)
	}
	err := t.again(func() error { return t.removeJudged(ctx, judged) })
	if err != nil {
		if errors.Is(err, ErrNotFound) {
			err = nil
		}
		return false, err
	}
	if name := judged.Name; name.Class == ClassTail {
		// Fails while other tails are there. A Put that has just found the
		// directory makes it again.
		_ = t.fs.Remove(filepath.Join(t.base, tailDir(name.Fingerprint, name.Parent)))
	}
	return true, nil
}

func (t *dirTier) SyncRemoved(ctx context.Context, names []Name) error {
	if err := t.ready(ctx); err != nil {
		return classify(err)
	}
	dirs := make(map[string]bool)
	for _, name := range names {
		dirs[filepath.Dir(t.path(name))] = true
	}
	if t.shared { // where removeJudged has moved them
		dirs[t.temp.dir] = true
	}
	for dir := range dirs {
		if err := t.syncNearest(dir); err != nil {
			return t.opFailed(err)
		}
	}
	return nil
}

// syncNearest syncs dir or, where dir has been removed, what held it.
func (t *dirTier) syncNearest(dir string) error {
	for {
		err := t.fs.SyncDir(dir)
		if !errors.Is(err, fs.ErrNotExist) || len(dir) <= len(t.root) {
			return err
		}
		dir = filepath.Dir(dir)
	}
}

func (t *dirTier) Touch(ctx context.Context, name Name, used time.Time) error {
	if err := t.ready(ctx); err != nil {
		return classify(err)
	}
	return t.again(func() error { return t.fs.Chtimes(t.path(name), used, used) })
}

func (t *dirTier) Space(ctx context.Context) (vfs.Space, error) {
	if err := t.ready(ctx); err != nil {
		return vfs.Space{}, classify(err)
	}
	space, err := t.fs.Space(t.root)
	return space, t.opFailed(err)
}

func (t *dirTier) Lock(ctx context.Context) (func(), error) {
	if err := t.ready(ctx); err != nil {
		return nil, classify(err)
	}
	if _, err := t.temp.claim(); errors.Is(err, ErrNotShared) {
		return nil, fmt.Errorf("%w (%w)", err, ErrLocked)
	}
	var release func()
	err := t.inDir(t.base, func() error {
		lock, err := t.fs.Lock(filepath.Join(t.base, collectLock))
		switch {
		case err == nil:
			release = func() { lock.Close() }
		case vfs.IsNoLocks(err):
			// Two processes that collect at once remove too much, at worst.
			release, err = func() {}, nil
		}
		return err
	})
	return release, t.opFailed(err)
}

func (t *dirTier) Left() int64 { return t.temp.leftBytes.Load() }

// Close removes what the tier keeps in the temporary directory. Uploads that
// are still running fail.
func (t *dirTier) Close() error {
	if t.closed.Swap(true) {
		return nil
	}
	return t.temp.close()
}

// fileBlob is a Blob of one open file.
type fileBlob struct {
	file vfs.File
	info Info
}

// openFileBlob opens path, which holds the file name.
func openFileBlob(fsys vfs.FS, path string, name Name) (Blob, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, classify(err)
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, classify(err)
	}
	return &fileBlob{file: f, info: Info{
		Name: name, Bytes: fi.Size(), Physical: fsys.PhysicalBytes(fi), Used: fi.ModTime(),
	}}, nil
}

func (b *fileBlob) Info() Info { return b.info }

func (b *fileBlob) Size() int64 { return b.info.Bytes }

func (b *fileBlob) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(p) == 0 {
		return nil
	}
	n, err := b.file.ReadAt(p, off)
	if n == len(p) {
		return nil // io.EOF may come with the last byte
	}
	if vfs.IsStale(err) {
		return fmt.Errorf("%w (%w)", err, errStale)
	}
	return err
}

// Close ignores the error: nothing was written.
func (b *fileBlob) Close() { _ = b.file.Close() }
