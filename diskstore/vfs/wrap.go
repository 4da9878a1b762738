package vfs

import (
	"io"
	"io/fs"
	"time"
)

// Op names one kind of operation of an FS or a File. PhysicalBytes, Owner and SameFile only look at
// a FileInfo and are not among them.
type Op string

const (
	OpCreate  Op = "create"
	OpOpen    Op = "open"
	OpUncache Op = "uncache"
	OpMkdir   Op = "mkdir"
	OpReadDir Op = "readdir"
	OpRename  Op = "rename"
	OpRemove  Op = "remove"
	OpLstat   Op = "lstat"
	OpChtimes Op = "chtimes"
	OpLocking Op = "locking"
	OpSyncDir Op = "syncdir"
	OpLock    Op = "lock"
	OpSpace   Op = "space"
	OpIsRAM   Op = "isram"
	OpRead    Op = "read"
	OpWrite   Op = "write"
	OpSync    Op = "sync"
	OpClose   Op = "close"
	OpStat    Op = "stat"
)

// wrapped is an FS whose operations, and those of its open files, go through around.
type wrapped struct {
	fs FS

	// around carries out an operation on a path, or on a rename's two, by calling run; or it fails
	// without a result.
	around func(op Op, run func() (any, error), paths ...string) (any, error)

	// file completes an open file: around does not see what it reads and writes, nor its end.
	file func(wrappedFile) File
}

func (w *wrapped) do(op Op, run func() error, paths ...string) error {
	_, err := w.around(op, func() (any, error) { return nil, run() }, paths...)
	return err
}

func get[T any](w *wrapped, op Op, run func(name string) (T, error), name string) (T, error) {
	v, err := w.around(op, func() (any, error) { return run(name) }, name)
	result, _ := v.(T)
	return result, err
}

func (w *wrapped) Create(name string) (File, error) { return w.open(OpCreate, w.fs.Create, name) }

func (w *wrapped) Open(name string) (File, error) { return w.open(OpOpen, w.fs.Open, name) }

func (w *wrapped) open(op Op, open func(string) (File, error), name string) (File, error) {
	f, err := get(w, op, open, name)
	if err != nil {
		return nil, err
	}
	return w.file(wrappedFile{File: f, in: w, name: name}), nil
}

func (w *wrapped) Uncache(name string) error {
	return w.do(OpUncache, func() error { return w.fs.Uncache(name) }, name)
}

func (w *wrapped) Mkdir(name string) error {
	return w.do(OpMkdir, func() error { return w.fs.Mkdir(name) }, name)
}

func (w *wrapped) ReadDir(name string) ([]fs.DirEntry, error) {
	return get(w, OpReadDir, w.fs.ReadDir, name)
}

func (w *wrapped) Rename(oldname, newname string) error {
	return w.do(OpRename, func() error { return w.fs.Rename(oldname, newname) }, oldname, newname)
}

func (w *wrapped) Remove(name string) error {
	return w.do(OpRemove, func() error { return w.fs.Remove(name) }, name)
}

func (w *wrapped) Lstat(name string) (fs.FileInfo, error) { return get(w, OpLstat, w.fs.Lstat, name) }

func (w *wrapped) Chtimes(name string, atime, mtime time.Time) error {
	return w.do(OpChtimes, func() error { return w.fs.Chtimes(name, atime, mtime) }, name)
}

func (w *wrapped) SyncDir(name string) error {
	return w.do(OpSyncDir, func() error { return w.fs.SyncDir(name) }, name)
}

func (w *wrapped) Lock(name string) (io.Closer, error) { return get(w, OpLock, w.fs.Lock, name) }

func (w *wrapped) LockThere(name string) (io.Closer, error) {
	return get(w, OpLock, w.fs.LockThere, name)
}

func (w *wrapped) Locking(name string) (Locking, error) {
	l, err := get(w, OpLocking, w.fs.Locking, name)
	if err != nil {
		l.Reach = ReachHost
	}
	return l, err
}

func (w *wrapped) Space(name string) (Space, error) { return get(w, OpSpace, w.fs.Space, name) }

func (w *wrapped) IsRAM(name string) (bool, error) { return get(w, OpIsRAM, w.fs.IsRAM, name) }

func (w *wrapped) PhysicalBytes(info fs.FileInfo) int64 { return w.fs.PhysicalBytes(info) }

func (w *wrapped) Owner(info fs.FileInfo) (uid int, ok bool) { return w.fs.Owner(info) }

func (w *wrapped) SameFile(a, b fs.FileInfo) bool { return w.fs.SameFile(a, b) }

type wrappedFile struct {
	File
	in   *wrapped
	name string
}

func (f wrappedFile) Sync() error { return f.in.do(OpSync, f.File.Sync, f.name) }

func (f wrappedFile) Stat() (fs.FileInfo, error) {
	return get(f.in, OpStat, func(string) (fs.FileInfo, error) { return f.File.Stat() }, f.name)
}
