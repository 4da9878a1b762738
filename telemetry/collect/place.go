package collect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/steady"
)

// Names below the root.
const (
	directoryName = "telemetry"
	lockName      = "lock"
	socketName    = "socket"
	fileName      = "totals.json"
	asideName     = "totals-set-aside.json" // one that could not be used
)

// place is the directory of a root's telemetry. Each operation of the disk ends in time; while
// one hangs, all others fail at once.
type place struct {
	root, dir string
	above, fs vfs.FS // of the root, and of the directory
	guard     steady.Guard
	wait      steady.Wait
}

func newPlace(root string, opt Options) (*place, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("find the directory of telemetry: %w", err)
	}
	dir := filepath.Join(root, directoryName)
	return &place{root: root, dir: dir, above: opt.fs(root), fs: opt.fs(dir), wait: opt.Intervals.wait()}, nil
}

func (p *place) path(name string) string { return filepath.Join(p.dir, name) }

// do runs an operation of the disk.
func do[T any](ctx context.Context, p *place, op func() (T, error), late func(T, error)) (T, error) {
	return steady.Do(ctx, &p.guard, p.wait, op, late)
}

func (p *place) do(ctx context.Context, op func() error) error {
	_, err := do(ctx, p, func() (struct{}, error) { return struct{}{}, op() }, func(struct{}, error) {})
	return err
}

// make makes the directory where it is missing, and refuses it where others may change it. A
// missing root is fs.ErrNotExist: the page store makes it.
func (p *place) make() error {
	if err := dir.CheckRoot(p.above, p.root); err != nil {
		return err
	}
	if err := p.above.Mkdir(p.dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return dir.CheckRoot(p.fs, p.dir)
}

// held is a lock, and the file that it is on.
type held struct {
	io.Closer
	info fs.FileInfo
}

// lock takes the lock that one process holds at a time, or returns vfs.ErrLocked.
func (p *place) lock() (*held, error) {
	lock, err := p.fs.Lock(p.path(lockName))
	if errors.Is(err, vfs.ErrLocked) {
		return nil, err
	}
	if err != nil {
		if err := p.make(); err != nil {
			return nil, err
		}
		if lock, err = p.fs.Lock(p.path(lockName)); err != nil {
			return nil, err
		}
	}
	h := &held{Closer: lock}
	err = dir.CheckRoot(p.fs, p.dir)
	if err == nil {
		if f, ok := lock.(interface{ Stat() (fs.FileInfo, error) }); ok {
			h.info, err = f.Stat()
		} else {
			h.info, err = p.fs.Lstat(p.path(lockName))
		}
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return h, nil
}

// has reports whether a file with that description still has the name. A person may have
// removed the directory, and another process may have made it anew.
func (p *place) has(name string, info fs.FileInfo) bool {
	now, err := p.fs.Lstat(p.path(name))
	return err == nil && p.fs.SameFile(info, now)
}
