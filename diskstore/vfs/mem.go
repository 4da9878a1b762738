package vfs

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Mem is a filesystem in memory that tracks its durable part. Crash and Clone copy a Mem at
// any moment; open files stay with the original. A new Mem has an empty, durable root
// directory. Methods may be called from several goroutines.
type Mem struct {
	mu     sync.Mutex
	root   *memNode
	total  int64
	atOnce bool // every change is durable at once
}

// NewMem returns a filesystem that is never full, and says that totalBytes are free.
func NewMem(totalBytes int64) *Mem {
	return &Mem{root: newMemNode(fs.ModeDir|dirMode, time.Now()), total: totalBytes}
}

// NewDurableMem returns a filesystem as NewMem does, of which every change is durable at once: Crash loses
// nothing, and removed files take no memory.
func NewDurableMem(totalBytes int64) *Mem {
	m := NewMem(totalBytes)
	m.atOnce = true
	return m
}

// memPath splits a path into its elements. Relative paths begin at the root.
func memPath(path string) []string {
	const separator = string(filepath.Separator)
	path = filepath.Clean(path)
	path = strings.Trim(path[len(filepath.VolumeName(path)):], separator)
	if path == "" || path == "." {
		return nil
	}
	return strings.Split(path, separator)
}

func (m *Mem) at(path string) (*memNode, error) { return m.find(memPath(path)) }

func (m *Mem) dirAt(path string) (*memNode, error) {
	n, err := m.at(path)
	if err == nil {
		err = n.isDir()
	}
	return n, err
}

func (m *Mem) find(elements []string) (*memNode, error) {
	n := m.root
	for _, element := range elements {
		if err := n.isDir(); err != nil {
			return nil, err
		}
		if n = n.names[element]; n == nil {
			return nil, syscall.ENOENT
		}
	}
	return n, nil
}

// isDir returns the error of a path through the node, nil for a directory.
func (n *memNode) isDir() error {
	if n.mode.IsDir() {
		return nil
	}
	return syscall.ENOTDIR
}

// memPlace is where a path leads: a name in a directory, and the node of that name.
type memPlace struct {
	dir  *memNode
	base string
	node *memNode // nil when nothing has the name
}

// place finds the directory of a path, which must exist, and the path's node.
func (m *Mem) place(path string) (memPlace, error) {
	elements := memPath(path)
	if len(elements) == 0 {
		return memPlace{}, syscall.EBUSY // the root has no name
	}
	last := len(elements) - 1
	dir, err := m.find(elements[:last])
	if err == nil {
		err = dir.isDir()
	}
	if err != nil {
		return memPlace{}, err
	}
	return memPlace{dir, elements[last], dir.names[elements[last]]}, nil
}

// add gives a new node the place's name.
func (m *Mem) add(p memPlace, mode fs.FileMode) *memNode {
	now := time.Now()
	n := newMemNode(mode, now)
	m.change(p.dir, memChange{name: p.base, node: n}, now)
	return n
}

// do runs an operation under the lock and gives its error the operation and the path.
func (m *Mem) do(op, path string, run func() error) error {
	_, err := memGet(m, op, path, func() (struct{}, error) { return struct{}{}, run() })
	return err
}

// memGet does as do, for an operation with a result.
func memGet[T any](m *Mem, op, path string, run func() (T, error)) (T, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, err := run()
	if err != nil {
		var none T
		return none, &fs.PathError{Op: op, Path: path, Err: err}
	}
	return v, nil
}

func (m *Mem) Create(name string) (File, error) {
	return memGet(m, "open", name, func() (File, error) {
		p, err := m.place(name)
		if err == nil && p.node != nil {
			err = syscall.EEXIST
		}
		if err != nil {
			return nil, err
		}
		return &memFile{m: m, node: m.add(p, fileMode), name: name, writable: true}, nil
	})
}

func (m *Mem) Open(name string) (File, error) {
	return memGet(m, "open", name, func() (File, error) {
		n, err := m.at(name)
		if err == nil && !n.mode.IsRegular() {
			err = ErrNotRegular
		}
		if err != nil {
			return nil, err
		}
		return &memFile{m: m, node: n, name: name}, nil
	})
}

// Uncache does nothing: a Mem has no cache.
func (m *Mem) Uncache(name string) error {
	_, err := m.Lstat(name)
	return err
}

func (m *Mem) Mkdir(name string) error {
	return m.do("mkdir", name, func() error {
		p, err := m.place(name)
		if len(memPath(name)) == 0 || err == nil && p.node != nil {
			return syscall.EEXIST
		}
		if err != nil {
			return err
		}
		m.add(p, fs.ModeDir|dirMode)
		return nil
	})
}

// ReadDir sorts, so that a seed always gives the same run.
func (m *Mem) ReadDir(name string) ([]fs.DirEntry, error) {
	return memGet(m, "open", name, func() (entries []fs.DirEntry, err error) {
		n, err := m.dirAt(name)
		if err != nil {
			return nil, err
		}
		for _, base := range sortedNames(n.names) {
			entries = append(entries, fs.FileInfoToDirEntry(n.names[base].info(base)))
		}
		return entries, nil
	})
}

func (m *Mem) Rename(oldname, newname string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.rename(oldname, newname); err != nil {
		return &os.LinkError{Op: "rename", Old: oldname, New: newname, Err: err}
	}
	return nil
}

func (m *Mem) rename(oldname, newname string) error {
	from, err := m.place(oldname)
	if err == nil && from.node == nil {
		err = syscall.ENOENT
	}
	if err != nil {
		return err
	}
	to, err := m.place(newname)
	switch {
	case err != nil:
		return err
	case to.node == from.node:
		return nil
	case to.node != nil && to.node.mode.IsDir():
		return syscall.EEXIST
	case to.node != nil && from.node.mode.IsDir():
		return syscall.ENOTDIR
	case from.node.mode.IsDir() && m.within(memPath(newname), from.node):
		return syscall.EINVAL
	}
	now := time.Now()
	if from.dir == to.dir {
		m.change(to.dir, memChange{name: to.base, node: from.node, gone: from.base}, now)
	} else {
		m.change(to.dir, memChange{name: to.base, node: from.node}, now)
		m.change(from.dir, memChange{name: from.base}, now)
	}
	return nil
}

// within reports whether the path of elements goes through n.
func (m *Mem) within(elements []string, n *memNode) bool {
	for i := range elements {
		if at, err := m.find(elements[:i]); err == nil && at == n {
			return true
		}
	}
	return false
}

func (m *Mem) Remove(name string) error {
	return m.do("remove", name, func() error {
		p, err := m.place(name)
		switch {
		case err != nil:
			return err
		case p.node == nil:
			return syscall.ENOENT
		case len(p.node.names) > 0:
			return syscall.ENOTEMPTY
		}
		m.change(p.dir, memChange{name: p.base}, time.Now())
		return nil
	})
}

func (m *Mem) Lstat(name string) (fs.FileInfo, error) {
	return memGet(m, "lstat", name, func() (fs.FileInfo, error) {
		n, err := m.at(name)
		if err != nil {
			return nil, err
		}
		return n.info(filepath.Base(name)), nil
	})
}

func (m *Mem) Chtimes(name string, atime, mtime time.Time) error {
	return m.do("chtimes", name, func() error {
		n, err := m.at(name)
		if err == nil {
			n.times = memTimes{atime, mtime}
		}
		return err
	})
}

// Locking returns ReachAll: all users of a Mem see its locks.
func (m *Mem) Locking(name string) (Locking, error) {
	_, err := m.Lstat(name)
	return Locking{Reach: ReachAll, Host: "mem", Why: "memory"}, err
}

func (m *Mem) SyncDir(name string) error {
	return m.do("open", name, func() error {
		n, err := m.dirAt(name)
		if err == nil {
			n.sync()
		}
		return err
	})
}

func (m *Mem) Lock(name string) (io.Closer, error) { return m.lock(name, true) }

func (m *Mem) LockThere(name string) (io.Closer, error) { return m.lock(name, false) }

func (m *Mem) lock(name string, create bool) (io.Closer, error) {
	return memGet(m, "lock", name, func() (io.Closer, error) {
		p, err := m.place(name)
		if err != nil {
			return nil, err
		}
		n := p.node
		switch {
		case n == nil && !create:
			return nil, fs.ErrNotExist
		case n == nil:
			n = m.add(p, fileMode)
		case !n.mode.IsRegular():
			return nil, ErrNotRegular
		case n.locked:
			return nil, ErrLocked
		}
		n.locked = true
		return &memFile{m: m, node: n, name: name, writable: true, locks: true}, nil
	})
}

func (m *Mem) Space(name string) (Space, error) {
	return memGet(m, "statfs", name, func() (Space, error) {
		_, err := m.at(name)
		return Space{Total: m.total, Free: m.total}, err
	})
}

func (m *Mem) PhysicalBytes(info fs.FileInfo) int64 {
	return (info.Size() + memBlock - 1) &^ (memBlock - 1)
}

// Owner returns this process's user for every file.
func (m *Mem) Owner(fs.FileInfo) (uid int, ok bool) { return os.Geteuid(), os.Geteuid() >= 0 }

// SameFile compares the files behind two names.
func (m *Mem) SameFile(a, b fs.FileInfo) bool { return a.Sys() == b.Sys() }

// IsRAM returns false: a Mem stands for a disk.
func (m *Mem) IsRAM(name string) (bool, error) {
	_, err := m.Space(name)
	return false, err
}

// Edit changes a file's durable content, as a failing device does.
func (m *Mem) Edit(name string, edit func(data []byte) []byte) error {
	return m.do("edit", name, func() error {
		n, err := m.at(name)
		if err != nil {
			return err
		}
		n.data = edit(slices.Clone(n.data))
		n.sync()
		return nil
	})
}
