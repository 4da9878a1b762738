package storetest

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/vfs"
)

// Share simulates a network filesystem that several machines use. Locks succeed and stay on
// each machine, or fail. The server's clock differs from the machines' clocks. Each machine
// caches a file's attributes until it opens or changes the file itself.
type Share struct {
	Ahead   time.Duration // of the server's clock
	NoLocks bool
	Reach   vfs.Reach
	Machine map[string]string        // machine name by host, if any
	Up      map[string]time.Duration // by host

	mu    sync.Mutex
	locks map[string]bool // by machine and path
	seen  map[string]fs.FileInfo
}

// NewShare returns a share with locks that stay on each machine.
func NewShare(ahead time.Duration) *Share {
	return &Share{Ahead: ahead, Reach: vfs.ReachHost, locks: make(map[string]bool), seen: make(map[string]fs.FileInfo)}
}

// From returns the share as seen by one machine.
func (s *Share) From(host string) vfs.FS { return hostFS{QuickFS, s, host} }

// Die releases all locks of a machine.
func (s *Share) Die(host string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.locks {
		if strings.HasPrefix(key, host+" ") {
			delete(s.locks, key)
		}
	}
}

type hostFS struct {
	vfs.FS
	share *Share
	host  string
}

// skewedInfo has the server's times.
type skewedInfo struct {
	fs.FileInfo
	ahead time.Duration
}

func (i skewedInfo) ModTime() time.Time { return i.FileInfo.ModTime().Add(i.ahead) }

func (h hostFS) forget(names ...string) {
	h.share.mu.Lock()
	defer h.share.mu.Unlock()
	for _, name := range names {
		delete(h.share.seen, h.host+" "+name)
	}
}

func (h hostFS) Lstat(name string) (fs.FileInfo, error) {
	h.share.mu.Lock()
	defer h.share.mu.Unlock()
	if fi, ok := h.share.seen[h.host+" "+name]; ok {
		return fi, nil
	}
	fi, err := h.FS.Lstat(name)
	if err != nil {
		return nil, err
	}
	skewed := skewedInfo{fi, h.share.Ahead}
	if fi.Mode().IsRegular() {
		h.share.seen[h.host+" "+name] = skewed
	}
	return skewed, nil
}

func (h hostFS) SameFile(a, b fs.FileInfo) bool {
	return os.SameFile(a.(skewedInfo).FileInfo, b.(skewedInfo).FileInfo)
}

func (h hostFS) Open(name string) (vfs.File, error) {
	h.forget(name)
	f, err := h.FS.Open(name)
	return hostFile{f, h, name}, err
}

func (h hostFS) Create(name string) (vfs.File, error) {
	h.forget(name)
	f, err := h.FS.Create(name)
	return hostFile{f, h, name}, err
}

func (h hostFS) Rename(oldname, newname string) error {
	defer h.forget(oldname, newname)
	return h.FS.Rename(oldname, newname)
}

func (h hostFS) Remove(name string) error {
	defer h.forget(name)
	return h.FS.Remove(name)
}

func (h hostFS) Chtimes(name string, atime, mtime time.Time) error {
	defer h.forget(name)
	return h.FS.Chtimes(name, atime.Add(-h.share.Ahead), mtime.Add(-h.share.Ahead))
}

func (h hostFS) Locking(string) (vfs.Locking, error) {
	return vfs.Locking{
		Reach: h.share.Reach, Host: h.host, Why: "nfs with nolock",
		Machine: h.share.Machine[h.host], Up: h.share.Up[h.host],
	}, nil
}

func (h hostFS) Lock(name string) (io.Closer, error) { return h.lock(name, os.O_CREATE) }

func (h hostFS) LockThere(name string) (io.Closer, error) { return h.lock(name, 0) }

func (h hostFS) lock(name string, flags int) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|flags, 0o600) // the lock file is made before locking fails
	if err != nil {
		return nil, err
	}
	f.Close()
	h.share.mu.Lock()
	defer h.share.mu.Unlock()
	key := h.host + " " + name
	switch {
	case h.share.NoLocks:
		return nil, &fs.PathError{Op: "lock", Path: name, Err: syscall.ENOLCK}
	case h.share.locks[key]:
		return nil, &fs.PathError{Op: "lock", Path: name, Err: vfs.ErrLocked}
	}
	h.share.locks[key] = true
	return hostLock{h.share, key}, nil
}

type hostLock struct {
	share *Share
	key   string
}

func (l hostLock) Close() error {
	l.share.mu.Lock()
	defer l.share.mu.Unlock()
	delete(l.share.locks, l.key)
	return nil
}

type hostFile struct {
	vfs.File
	h    hostFS
	name string
}

func (f hostFile) Stat() (fs.FileInfo, error) {
	fi, err := f.File.Stat()
	return skewedInfo{fi, f.h.share.Ahead}, err
}

func (f hostFile) Write(p []byte) (int, error) {
	f.h.forget(f.name)
	return f.File.Write(p)
}

// PrivateDir makes an empty root.
func PrivateDir(t testing.TB) string {
	dir := filepath.Join(t.TempDir(), "share")
	require.NoError(t, os.Mkdir(dir, 0o700))
	return dir
}

// ClockOffsets are differences between a server's clock and a machine's.
var ClockOffsets = []time.Duration{0, -3 * time.Hour, 3 * time.Hour}
