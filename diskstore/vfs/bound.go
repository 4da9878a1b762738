package vfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/internal/steady"
)

// ErrHung reports an operation of a filesystem that does not answer.
var ErrHung = errors.New("vfs: filesystem does not answer")

// Bounded is an FS with a limit on the time of each operation. The first operation that
// takes longer fails with ErrHung, and so does every later operation at once, because a
// mount that hangs once hangs again. A hung operation stays in its goroutine until the
// operating system ends it. Data is copied through separate buffers, so that a hung
// operation never touches its caller's memory.
type Bounded struct {
	fs    FS
	root  string
	limit time.Duration
	hung  atomic.Pointer[hungError]
}

// Bound limits the time of each operation of fs. root is the directory that fs is used for,
// for errors.
func Bound(fs FS, root string, limit time.Duration) *Bounded {
	return &Bounded{fs: fs, root: root, limit: limit}
}

// hungError names the operation that did not end.
type hungError struct {
	root, path string
	op         Op
	limit      time.Duration
}

func (e *hungError) Error() string {
	return fmt.Sprintf("%s does not answer: %s %s took longer than %v", e.root, e.op, e.path, e.limit)
}

func (e *hungError) Is(target error) bool { return target == ErrHung }

// Do runs an operation for which FS has no method.
func (b *Bounded) Do(op Op, path string, fn func() error) error {
	_, err := within(b, op, path, func() (struct{}, error) { return struct{}{}, fn() }, nil)
	return err
}

// within waits for fn at most for the limit. A later result goes to late, which may be nil.
func within[T any](b *Bounded, op Op, path string, fn func() (T, error), late func(T)) (T, error) {
	var zero T
	if e := b.hung.Load(); e != nil {
		return zero, e
	}
	ctx, cancel := context.WithTimeout(context.Background(), b.limit)
	defer cancel()
	v, inTime, err := steady.Within(ctx.Done(), fn, func(v T, err error) {
		if err == nil && late != nil {
			late(v)
		}
	}, nil)
	if !inTime {
		b.hung.CompareAndSwap(nil, &hungError{b.root, path, op, b.limit})
		return zero, b.hung.Load()
	}
	return v, err
}

func (b *Bounded) Create(name string) (File, error) {
	return b.open(OpCreate, name, b.fs.Create)
}

func (b *Bounded) Open(name string) (File, error) {
	return b.open(OpOpen, name, b.fs.Open)
}

func (b *Bounded) Uncache(name string) error {
	return b.Do(OpUncache, name, func() error { return b.fs.Uncache(name) })
}

func (b *Bounded) open(op Op, name string, fn func(string) (File, error)) (File, error) {
	f, err := within(b, op, name, func() (File, error) { return fn(name) }, func(f File) { f.Close() })
	if err != nil {
		return nil, err
	}
	return &boundedFile{b: b, f: f, name: name}, nil
}

func (b *Bounded) Mkdir(name string) error {
	return b.Do(OpMkdir, name, func() error { return b.fs.Mkdir(name) })
}

func (b *Bounded) ReadDir(name string) ([]fs.DirEntry, error) {
	return within(b, OpReadDir, name, func() ([]fs.DirEntry, error) { return b.fs.ReadDir(name) }, nil)
}

func (b *Bounded) Rename(oldname, newname string) error {
	return b.Do(OpRename, oldname, func() error { return b.fs.Rename(oldname, newname) })
}

func (b *Bounded) Remove(name string) error {
	return b.Do(OpRemove, name, func() error { return b.fs.Remove(name) })
}

func (b *Bounded) Lstat(name string) (fs.FileInfo, error) {
	return within(b, OpLstat, name, func() (fs.FileInfo, error) { return b.fs.Lstat(name) }, nil)
}

func (b *Bounded) Chtimes(name string, atime, mtime time.Time) error {
	return b.Do(OpChtimes, name, func() error { return b.fs.Chtimes(name, atime, mtime) })
}

func (b *Bounded) Locking(name string) (Locking, error) {
	return within(b, OpLocking, name, func() (Locking, error) { return b.fs.Locking(name) }, nil)
}

func (b *Bounded) SyncDir(name string) error {
	return b.Do(OpSyncDir, name, func() error { return b.fs.SyncDir(name) })
}

func (b *Bounded) Lock(name string) (io.Closer, error) { return b.lock(name, b.fs.Lock) }

func (b *Bounded) LockThere(name string) (io.Closer, error) { return b.lock(name, b.fs.LockThere) }

func (b *Bounded) lock(name string, take func(string) (io.Closer, error)) (io.Closer, error) {
	lock, err := within(b, OpLock, name, func() (io.Closer, error) { return take(name) }, func(l io.Closer) { l.Close() })
	if err != nil {
		return nil, err
	}
	return &boundedLock{b: b, lock: lock, name: name}, nil
}

func (b *Bounded) Space(name string) (Space, error) {
	return within(b, OpSpace, name, func() (Space, error) { return b.fs.Space(name) }, nil)
}

func (b *Bounded) IsRAM(name string) (bool, error) {
	return within(b, OpIsRAM, name, func() (bool, error) { return b.fs.IsRAM(name) }, nil)
}

func (b *Bounded) PhysicalBytes(info fs.FileInfo) int64 { return b.fs.PhysicalBytes(info) }

func (b *Bounded) Owner(info fs.FileInfo) (uid int, ok bool) { return b.fs.Owner(info) }

func (b *Bounded) SameFile(x, y fs.FileInfo) bool { return b.fs.SameFile(x, y) }

// boundedLock is a lock whose release is bounded.
type boundedLock struct {
	b    *Bounded
	lock io.Closer
	name string
}

func (l *boundedLock) Close() error { return l.b.release(l.name, l.lock) }

// release closes a file or a directory. On a hung filesystem, release tries to close without
// waiting: otherwise the file could stay open for the rest of the process.
func (b *Bounded) release(name string, c io.Closer) error {
	if e := b.hung.Load(); e != nil {
		go c.Close()
		return e
	}
	return b.Do(OpClose, name, c.Close)
}

// boundedFile is a File each of whose operations is bounded.
type boundedFile struct {
	b    *Bounded
	f    File
	name string
}

// crossing are the buffers that reads are copied through.
var crossing sync.Pool

func takeCrossing(n int) *[]byte {
	if p, ok := crossing.Get().(*[]byte); ok && cap(*p) >= n {
		*p = (*p)[:n]
		return p
	}
	p := make([]byte, n)
	return &p
}

func (f *boundedFile) ReadAt(p []byte, off int64) (int, error) {
	type read struct {
		own *[]byte
		n   int
		err error // some bytes may have been read despite an error
	}
	size := len(p)
	r, err := within(f.b, OpRead, f.name, func() (read, error) {
		own := takeCrossing(size)
		n, err := f.f.ReadAt(*own, off)
		return read{own, n, err}, nil
	}, nil)
	if err != nil {
		return 0, err
	}
	copy(p, (*r.own)[:r.n])
	crossing.Put(r.own)
	return r.n, r.err
}

func (f *boundedFile) Write(p []byte) (int, error) {
	type written struct {
		n   int
		err error
	}
	own := bytes.Clone(p)
	w, err := within(f.b, OpWrite, f.name, func() (written, error) {
		n, err := f.f.Write(own)
		return written{n, err}, nil
	}, nil)
	if err != nil {
		return 0, err
	}
	return w.n, w.err
}

func (f *boundedFile) Sync() error { return f.b.Do(OpSync, f.name, f.f.Sync) }

func (f *boundedFile) Close() error { return f.b.release(f.name, f.f) }

func (f *boundedFile) Stat() (fs.FileInfo, error) {
	return within(f.b, OpStat, f.name, f.f.Stat, nil)
}
