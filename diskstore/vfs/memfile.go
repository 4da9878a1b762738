package vfs

import (
	"io"
	"io/fs"
	"path/filepath"
	"syscall"
	"time"
)

// memFile is an open file of a Mem, which is readable even after its name is removed.
type memFile struct {
	m        *Mem
	node     *memNode
	name     string
	writable bool
	closed   bool // guarded by m.mu
}

func (m *Mem) open(n *memNode, name string, writable bool) *memFile {
	n.opens++
	return &memFile{m: m, node: n, name: name, writable: writable}
}

// do runs an operation on the open file, like Mem.do.
func (f *memFile) do(op string, run func() error) error {
	return f.m.do(op, f.name, func() error {
		if f.closed {
			return fs.ErrClosed
		}
		return run()
	})
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	n := 0
	err := f.do("read", func() error {
		if off < 0 {
			return syscall.EINVAL
		}
		n = copy(p, f.node.data[min(off, int64(len(f.node.data))):])
		return nil
	})
	if err == nil && n < len(p) {
		err = io.EOF // without operation and path, as readers expect
	}
	return n, err
}

// Write stores as much as fits.
func (f *memFile) Write(p []byte) (int, error) {
	err := f.do("write", func() error {
		if !f.writable {
			return syscall.EBADF
		}
		n, m := f.node, f.m
		room := m.total - m.used + n.physical() - int64(len(n.data))
		full := int64(len(p)) > room
		if full {
			p = p[:max(0, room)]
		}
		m.used -= n.physical()
		n.data = append(n.data, p...)
		m.used += n.physical()
		if len(p) > 0 {
			n.times.modified = time.Now()
		}
		if full {
			return syscall.ENOSPC
		}
		return nil
	})
	return len(p), err
}

func (f *memFile) Sync() error {
	return f.do("sync", func() error {
		f.node.sync()
		return nil
	})
}

func (f *memFile) Stat() (fs.FileInfo, error) {
	var info fs.FileInfo
	err := f.do("stat", func() error {
		info = f.node.info(filepath.Base(f.name))
		return nil
	})
	return info, err
}

func (f *memFile) Close() error {
	return f.do("close", func() error {
		f.closed = true
		f.node.opens--
		f.m.release(f.node)
		return nil
	})
}

// memLock is a lock that is held.
type memLock struct{ file *memFile }

func (l *memLock) Close() error {
	l.file.m.mu.Lock()
	if !l.file.closed {
		l.file.node.locked = false
	}
	l.file.m.mu.Unlock()
	return l.file.Close()
}
