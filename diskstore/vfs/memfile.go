package vfs

import (
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// memBlock is the allocation unit of a Mem in bytes. Unsynced data survives a crash in pieces of this size.
const memBlock = 4096

// memNode is a file or a directory, without its names.
type memNode struct {
	mode fs.FileMode // type and permissions

	times   memTimes // as processes see them
	durable memTimes // as they are on the device

	links  int // number of names, while a crash is made
	locked bool

	// Of a file. Bytes are only added at the end and never changed in place, so that copies
	// of the node share them.
	data   []byte
	synced int // number of leading bytes that are durable

	// Of a directory.
	names   map[string]*memNode // as processes see them
	onDisk  map[string]*memNode // as of the last SyncDir; never changed in place
	changes []memChange         // changes since the last SyncDir, in order
}

type memTimes struct{ access, modified time.Time }

// memChange is an operation on a directory's names that is not durable yet.
type memChange struct {
	name string
	node *memNode // the new node of name; nil after a removal
	gone string   // the old name of a rename within the directory; else ""
}

// apply carries the change out on names.
func (c memChange) apply(names map[string]*memNode) {
	if c.gone != "" {
		delete(names, c.gone)
	}
	if c.node == nil {
		delete(names, c.name)
	} else {
		names[c.name] = c.node
	}
}

func newMemNode(mode fs.FileMode, now time.Time) *memNode {
	n := &memNode{mode: mode, times: memTimes{now, now}}
	n.durable = n.times
	if mode.IsDir() {
		n.names = make(map[string]*memNode)
	}
	return n
}

// change carries out a change of a directory's names, which is not durable yet.
func (m *Mem) change(dir *memNode, c memChange, now time.Time) {
	c.apply(dir.names)
	if !m.atOnce {
		dir.changes = append(dir.changes, c)
	}
	dir.times.modified = now
}

// sync makes the node's present state durable; of a directory the names only, not their nodes.
func (n *memNode) sync() {
	n.durable = n.times
	n.synced = len(n.data)
	if len(n.changes) > 0 {
		n.onDisk, n.changes = maps.Clone(n.names), nil
	}
}

// sortedNames returns the names in order: random decisions must not depend on the order of a map.
func sortedNames(names map[string]*memNode) []string { return slices.Sorted(maps.Keys(names)) }

// memInfo describes a node at the time of the call. Sys is the same for all names of one file.
type memInfo struct {
	node  *memNode
	name  string
	mode  fs.FileMode
	bytes int64
	mtime time.Time
}

func (n *memNode) info(name string) fs.FileInfo {
	return &memInfo{node: n, name: name, mode: n.mode, bytes: int64(len(n.data)), mtime: n.times.modified}
}

func (i *memInfo) Name() string       { return i.name }
func (i *memInfo) Size() int64        { return i.bytes }
func (i *memInfo) Mode() fs.FileMode  { return i.mode }
func (i *memInfo) ModTime() time.Time { return i.mtime }
func (i *memInfo) IsDir() bool        { return i.mode.IsDir() }
func (i *memInfo) Sys() any           { return i.node }

// memFile is an open file of a Mem, which is readable even after its name is removed.
type memFile struct {
	m        *Mem
	node     *memNode
	name     string
	writable bool
	locks    bool // the file is a lock
	closed   bool // guarded by m.mu
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

func (f *memFile) Write(p []byte) (int, error) {
	err := f.do("write", func() error {
		if !f.writable {
			return syscall.EBADF
		}
		f.node.data = append(f.node.data, p...)
		if len(p) > 0 {
			f.node.times.modified = time.Now()
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
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
		f.node.locked = f.node.locked && !f.locks
		return nil
	})
}
