package collect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/steady"
)

// Names below the root.
const (
	directoryName = "telemetry"
	foldName      = "fold"
	totalsName    = "totals.json"
	asideName     = "totals-set-aside.json" // one that could not be used

	numbersEnd = ".json" // of a process: its report without prompts
	wordsEnd   = ".words"
	lockEnd    = ".lock" // held by the process
	tmpEnd     = ".tmp"  // of a file that is being replaced
)

type place struct {
	root, dir string
	above, fs vfs.FS // of the root, and of the directory
	owner     int    // of the files
	log       *slog.Logger
	patience  time.Duration // with a disk that hangs
}

func newPlace(root string) (*place, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("find the directory of telemetry: %w", err)
	}
	dir := filepath.Join(root, directoryName)
	return &place{
		root: root, dir: dir, above: vfs.Below(root), fs: vfs.Below(dir), owner: os.Geteuid(),
		log: slog.New(slog.DiscardHandler), patience: time.Second,
	}, nil
}

func (p *place) path(name string) string { return filepath.Join(p.dir, name) }

// until runs something until it ends, or for a while after the end of ctx: a disk may hang.
func until(ctx context.Context, guard *steady.Guard, grace time.Duration, run func() error) error {
	_, err := steady.Do(ctx, guard, steady.Wait{Most: math.MaxInt64, Grace: grace}, func() (any, error) { return nil, run() }, nil)
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

// ownerOf returns the user that a directory and its files belong to. A reader that is root may read
// those of others; every other one is refused.
func ownerOf(path string) (uid int, err error) {
	info, err := vfs.OS.Lstat(path)
	if err != nil {
		return 0, err
	}
	uid, known := vfs.OS.Owner(info)
	if own := os.Geteuid(); !known || own != 0 || uid == own || !info.IsDir() || info.Mode().Perm()&0o022 != 0 {
		return own, dir.CheckRoot(vfs.OS, path)
	}
	return uid, nil
}

// held is a lock while this process has it.
type held struct {
	io.Closer
	name string
	info fs.FileInfo // of the file that it is on
}

// holds reports whether the lock's file still has its name. A person may have removed the directory,
// and another process may have made it anew.
func (p *place) holds(h *held) bool {
	now, err := p.fs.Lstat(p.path(h.name))
	return err == nil && p.fs.SameFile(h.info, now)
}

// errLost reports that the file of a lock is gone: another process may have the lock.
var errLost = fmt.Errorf("the file of the lock was removed: %w", vfs.ErrLocked)

// lock takes a lock that one process holds at a time, or returns vfs.ErrLocked. It does not come
// back with the lock on a file that was removed meanwhile.
func (p *place) lock(name string) (*held, error) {
	if err := p.make(); err != nil {
		return nil, err
	}
	lock, err := p.fs.Lock(p.path(name))
	if err != nil {
		return nil, err
	}
	h := &held{Closer: lock, name: name}
	if f, ok := lock.(interface{ Stat() (fs.FileInfo, error) }); ok {
		h.info, err = f.Stat()
	} else {
		err = errors.ErrUnsupported
	}
	if err == nil && !p.holds(h) {
		err = errLost
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return h, nil
}

// lockPause is the time between two attempts to take a lock.
const lockPause = 2 * time.Millisecond

// lockSoon takes a lock that others hold for moments: who changes files of other processes does so under
// that of foldName, and who asks whether a process runs holds its lock.
func (p *place) lockSoon(name string, patience time.Duration) (*held, error) {
	for end := time.Now().Add(patience); ; time.Sleep(lockPause) {
		lock, err := p.lock(name)
		if !errors.Is(err, vfs.ErrLocked) || time.Now().After(end) {
			return lock, err
		}
	}
}

// errForeign reports a file of another user.
var errForeign = errors.New("it belongs to another user")

// read reads a file of at most bytesMax bytes that belongs to the directory's owner.
func (p *place) read(name string, bytesMax int64) ([]byte, error) {
	f, err := p.fs.Open(p.path(name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if uid, ok := p.fs.Owner(info); ok && uid != p.owner {
		return nil, fmt.Errorf("%s: %w, user %d", p.path(name), errForeign, uid)
	}
	data, err := io.ReadAll(io.NewSectionReader(f, 0, bytesMax+1))
	if err == nil && int64(len(data)) > bytesMax {
		err = fmt.Errorf("%w: it is larger than %d bytes", errContent, bytesMax)
	}
	return data, err
}

// replace puts a file in the place of another in one step. Only the holder of a lock calls it, so
// the temporary name is always the same: a killed process leaves one such file.
func (p *place) replace(name string, data []byte) error {
	if err := p.remove(name + tmpEnd); err != nil {
		return err
	}
	f, err := p.fs.Create(p.path(name + tmpEnd))
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = p.fs.Rename(p.path(name+tmpEnd), p.path(name))
	}
	if err != nil {
		_ = p.remove(name + tmpEnd)
	}
	return err
}

// remove removes a file that may be missing.
func (p *place) remove(name string) error {
	if err := p.fs.Remove(p.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
