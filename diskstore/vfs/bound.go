package vfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/internal/steady"
)

// ErrHung reports an operation of a filesystem that does not answer.
var ErrHung = errors.New("vfs: filesystem does not answer")

// Bounded is an FS with a limit on the time of each operation. The first operation that takes longer
// fails with ErrHung, and so does every later operation at once, because a mount that hangs once hangs
// again. A hung operation stays in its goroutine until the operating system ends it. Data is copied
// through separate buffers, so that a hung operation never touches its caller's memory.
type Bounded struct {
	wrapped
	root  string
	limit time.Duration
	hung  atomic.Pointer[hungError]
}

// Bound limits the time of each operation of fs. root is the directory that fs is used for, for errors.
func Bound(fs FS, root string, limit time.Duration) *Bounded {
	b := &Bounded{root: root, limit: limit}
	b.wrapped = wrapped{fs: fs, around: b.within, file: func(f wrappedFile) File { return &boundedFile{f, b} }}
	return b
}

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
func (b *Bounded) Do(op Op, path string, run func() error) error { return b.do(op, run, path) }

// within waits for run at most for the limit. A file or a lock that is opened later is closed.
func (b *Bounded) within(op Op, run func() (any, error), paths ...string) (any, error) {
	if e := b.hung.Load(); e != nil {
		return nil, e
	}
	ctx, cancel := context.WithTimeout(context.Background(), b.limit)
	defer cancel()
	v, inTime, err := steady.Within(ctx.Done(), run, func(v any, err error) {
		if opened, ok := v.(io.Closer); ok && err == nil {
			opened.Close()
		}
	}, nil)
	if !inTime {
		b.hung.CompareAndSwap(nil, &hungError{b.root, paths[0], op, b.limit})
		return nil, b.hung.Load()
	}
	return v, err
}

func (b *Bounded) Lock(name string) (io.Closer, error) { return b.lock(name, b.wrapped.Lock) }

func (b *Bounded) LockThere(name string) (io.Closer, error) { return b.lock(name, b.wrapped.LockThere) }

func (b *Bounded) lock(name string, take func(string) (io.Closer, error)) (io.Closer, error) {
	lock, err := take(name)
	if err != nil {
		return nil, err
	}
	return &boundedLock{b: b, lock: lock, name: name}, nil
}

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
	wrappedFile
	b *Bounded
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

// moved is the result of a read or a write, which may have moved some bytes despite an error.
type moved struct {
	bytes *[]byte // of a read
	n     int
	err   error
}

func (f *boundedFile) ReadAt(p []byte, off int64) (int, error) {
	size := len(p)
	r, err := f.move(OpRead, func() moved {
		own := takeCrossing(size)
		n, err := f.File.ReadAt(*own, off)
		return moved{own, n, err}
	})
	if err != nil {
		return 0, err
	}
	copy(p, (*r.bytes)[:r.n])
	crossing.Put(r.bytes)
	return r.n, r.err
}

func (f *boundedFile) Write(p []byte) (int, error) {
	own := bytes.Clone(p)
	w, err := f.move(OpWrite, func() moved {
		n, err := f.File.Write(own)
		return moved{nil, n, err}
	})
	if err != nil {
		return 0, err
	}
	return w.n, w.err
}

func (f *boundedFile) move(op Op, run func() moved) (moved, error) {
	return get(&f.b.wrapped, op, func(string) (moved, error) { return run(), nil }, f.name)
}

func (f *boundedFile) Close() error { return f.b.release(f.name, f.File) }
