package dir

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

// Info describes a regular file, and refuses any other.
func (r *root) Info(name pagefile.Name, path string, fi fs.FileInfo) (tier.Info, error) {
	if !fi.Mode().IsRegular() {
		return tier.Info{}, &fs.PathError{Op: "stat", Path: path, Err: vfs.ErrNotRegular}
	}
	return tier.Info{Name: name, Bytes: fi.Size(), Physical: r.FS.PhysicalBytes(fi), Used: fi.ModTime()}, nil
}

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

// eachShard calls fn for the shard directories in dir, and for none when dir is no directory.
func (r *root) eachShard(dir string, fn func(first byte, path string) error) error {
	if fi, err := r.FS.Lstat(dir); err == nil && !fi.IsDir() {
		return nil
	}
	shards, err := r.appendShards(nil, dir, tier.Shard{})
	if err != nil {
		return err
	}
	for _, shard := range shards {
		if err := fn(shard.First, filepath.Join(dir, shardName(shard.First))); err != nil {
			return err
		}
	}
	return nil
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
