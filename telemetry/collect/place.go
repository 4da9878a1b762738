package collect

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"regexp"

	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/steady"
)

// Names below the root.
const (
	directoryName = "telemetry"
	lockName      = "lock"
	foldName      = "fold"
	fileName      = "totals.json"
	asideName     = "totals-set-aside.json" // one that could not be used

	numbersEnd = ".json" // of a process: its report without prompts
	wordsEnd   = ".words"
	ownEnd     = ".lock" // held by the process
	tmpEnd     = ".tmp"  // of a file that is being replaced
)

// fileOf matches a file of a process, and has its name without the end.
var fileOf = regexp.MustCompile(`^(p-[A-Z2-7]{26})\.(json|words|lock|json\.tmp|words\.tmp)$`)

// newName names the files of one Push. No other Push ever has the same.
func newName() string { return "p-" + rand.Text() }

// place is the directory of a root's telemetry. Each operation of the disk ends in time; while
// one hangs, all others fail at once.
type place struct {
	root, dir string
	above, fs vfs.FS // of the root, and of the directory
	guard     steady.Guard
	wait      steady.Wait
	said      map[string]bool // files that were complained about
}

func newPlace(root string, opt Options) (*place, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("find the directory of telemetry: %w", err)
	}
	dir := filepath.Join(root, directoryName)
	return &place{root: root, dir: dir, above: opt.fs(root), fs: opt.fs(dir), wait: opt.Intervals.wait(), said: make(map[string]bool)}, nil
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

// errForeign reports a directory or a file of another user.
var errForeign = errors.New("it belongs to another user")

// held is a lock while this process has it.
type held struct {
	io.Closer
	name string
	info fs.FileInfo // of the file that it is on
}

// lock takes a lock that one process holds at a time, or returns vfs.ErrLocked. It does not come
// back with the lock on a file that was removed meanwhile.
func (p *place) lock(name string) (*held, error) {
	lock, err := p.fs.Lock(p.path(name))
	if errors.Is(err, vfs.ErrLocked) {
		return nil, err
	}
	if err != nil {
		if err := p.make(); err != nil {
			return nil, err
		}
		if lock, err = p.fs.Lock(p.path(name)); err != nil {
			return nil, err
		}
	}
	h := &held{Closer: lock, name: name}
	if err = dir.CheckRoot(p.fs, p.dir); err == nil {
		h.info, err = statOf(lock)
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

func statOf(lock io.Closer) (fs.FileInfo, error) {
	f, ok := lock.(interface{ Stat() (fs.FileInfo, error) })
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return f.Stat()
}

// holds reports whether the lock's file still has its name. A person may have removed the
// directory, and another process may have made it anew.
func (p *place) holds(h *held) bool {
	now, err := p.fs.Lstat(p.path(h.name))
	return err == nil && p.fs.SameFile(h.info, now)
}

// collects reports whether somebody collects.
func collects(dir string) bool {
	held, err := vfs.Held(filepath.Join(dir, lockName))
	return err == nil && held
}

// files are the files of one process that are there, by their ends.
type files map[string]bool

// list lists the files of processes, by the processes' names.
func list(fsys vfs.FS, dir string) (map[string]files, error) {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	all := make(map[string]files)
	for _, e := range entries {
		m := fileOf.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		if all[m[1]] == nil && len(all) == processesMax {
			return nil, fmt.Errorf("%w: more than %d processes have files in %s", errContent, processesMax, dir)
		}
		if all[m[1]] == nil {
			all[m[1]] = make(files)
		}
		all[m[1]]["."+m[2]] = true
	}
	return all, nil
}

// readAll reads a file of at most bytesMax bytes that belongs to a user, and describes it.
func readAll(fsys vfs.FS, path string, bytesMax int64, owner int) ([]byte, fs.FileInfo, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if uid, ok := fsys.Owner(info); ok && uid != owner {
		return nil, nil, fmt.Errorf("%s: %w, user %d", path, errForeign, uid)
	}
	data, err := io.ReadAll(io.NewSectionReader(f, 0, bytesMax+1))
	if err == nil && int64(len(data)) > bytesMax {
		err = fmt.Errorf("%w: it is larger than %d bytes", errContent, bytesMax)
	}
	return data, info, err
}

// replace puts a file in the place of another in one step. Only the holder of a lock calls it, so
// the temporary name is always the same: a killed process leaves one such file.
func replace(fsys vfs.FS, path string, data []byte) error {
	tmp := path + tmpEnd
	if err := remove(fsys, tmp); err != nil {
		return err
	}
	f, err := fsys.Create(tmp)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = fsys.Rename(tmp, path)
	}
	if err != nil {
		_ = fsys.Remove(tmp)
	}
	return err
}

// remove removes a file that may be missing.
func remove(fsys vfs.FS, path string) error {
	if err := fsys.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeOf removes the files of a process except that with one end. The lock goes last: who holds it
// keeps others from the rest.
func (p *place) removeOf(name string, there files, except string) error {
	for _, end := range []string{numbersEnd, numbersEnd + tmpEnd, wordsEnd, wordsEnd + tmpEnd, ownEnd} {
		if !there[end] || end == except {
			continue
		}
		if err := remove(p.fs, p.path(name+end)); err != nil {
			return err
		}
	}
	return nil
}
