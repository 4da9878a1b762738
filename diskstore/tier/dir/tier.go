package dir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// Tier is a tier in a directory: on the local disk, or on anything mounted. Methods wait as
// long as the filesystem does.
type Tier struct {
	*root
	*branches
	*listing
	*records
	*moves
	Temp *tempDir
}

var _ tier.Disk = (*Tier)(nil)

// Options are the options of a tier in a directory.
type Options struct {
	Create   bool          // make a missing root
	Shared   bool          // other machines may use the directory: a remote tier
	Prefix   string        // of the id by which other processes know this one
	Timeout  time.Duration // bound of one filesystem operation; 0 for none
	Log      *slog.Logger  // may be nil
	Replaced func()        // called after this process lost its claim in the ledger; may be nil
}

// New returns the tier in root. A nil fsys means the operating system's filesystem.
func New(fsys vfs.FS, root string, opt Options) *Tier {
	if fsys == nil {
		fsys = vfs.Below(root)
	}
	if opt.Timeout > 0 {
		fsys = vfs.Bound(fsys, root, opt.Timeout)
	}
	at := newRoot(fsys, root, opt)
	tmp := filepath.Join(at.base, tmpDir)
	temp := &tempDir{in: at, dir: tmp, prefix: opt.Prefix, left: leftovers{in: at, files: make(map[string]int64)}, reach: reach{in: at, dir: tmp}}
	at.isHere, at.reset = temp.isHere, temp.reset
	return &Tier{
		root: at, Temp: temp,
		branches: &branches{at}, listing: &listing{root: at, temp: temp}, records: &records{root: at, temp: temp},
		moves: &moves{root: at, temp: temp},
	}
}

// Claim announces this process below the root and removes the files of dead processes.
func (t *Tier) Claim(ctx context.Context) error {
	if err := t.Ready(ctx); err != nil {
		return classify(err)
	}
	_, err := t.Temp.claim()
	return classify(err)
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

func (t *Tier) stat(ctx context.Context, name pagefile.Name) (info tier.Info, err error) {
	path := t.Path(name)
	err = t.run(ctx, func() error {
		fi, err := t.FS.Lstat(path)
		if err != nil {
			return err
		}
		if !fi.Mode().IsRegular() {
			return &fs.PathError{Op: "stat", Path: path, Err: vfs.ErrNotRegular}
		}
		info = InfoOf(t.FS, name, fi)
		return nil
	})
	return info, err
}

// InfoOf describes the file of name.
func InfoOf(fsys vfs.FS, name pagefile.Name, fi fs.FileInfo) tier.Info {
	return tier.Info{Name: name, Bytes: fi.Size(), Physical: fsys.PhysicalBytes(fi), Used: fi.ModTime()}
}

func (t *Tier) Open(ctx context.Context, name pagefile.Name, anew bool) (blob tier.Blob, err error) {
	err = t.run(ctx, func() error {
		if anew {
			_ = t.FS.Uncache(t.Path(name)) // after an error the file is opened anew, too
		}
		blob, err = OpenFile(t.FS, t.Path(name), name)
		return err
	})
	return blob, err
}

func (t *Tier) Remove(ctx context.Context, judged tier.Info) (bool, error) {
	if err := t.run(ctx, func() error { return t.removeJudged(ctx, judged) }); err != nil {
		if errors.Is(err, tier.ErrNotFound) {
			err = nil
		}
		return false, err
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

func (t *Tier) Touch(ctx context.Context, name pagefile.Name, used time.Time) error {
	return t.run(ctx, func() error { return t.FS.Chtimes(t.Path(name), used, used) })
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

func (t *Tier) Left() int64 { return t.Temp.left.bytes.Load() }

// Close removes the tier's files from the temporary directory. Uploads that are still running fail.
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
	return &Blob{File: f, info: InfoOf(fsys, name, fi)}, nil
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
