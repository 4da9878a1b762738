package vfs

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// OS is the operating system's filesystem.
var OS FS = osFS{}

// osFS is stateless; differences between systems are in os_*.go.
type osFS struct{}

const (
	fileMode = 0o600
	dirMode  = 0o700
)

func (osFS) Create(name string) (File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL|openFlags, fileMode)
	if err != nil {
		return nil, err
	}
	// A umask such as 0277 would leave a file that its own owner cannot open again.
	if err := f.Chmod(fileMode); err != nil {
		f.Close()
		os.Remove(name)
		return nil, err
	}
	return f, nil
}

func (osFS) Open(name string) (File, error) {
	f, err := openNoFollow(name)
	return regular(f, name, err)
}

func (osFS) Uncache(name string) error {
	f, err := openNoFollow(name)
	return uncached(f, err)
}

// uncached drops the cached bytes of a file, and closes the file.
func uncached(f *os.File, err error) error {
	if err != nil {
		return err
	}
	defer f.Close()
	return uncache(f)
}

// regular returns an open regular file, and ErrNotRegular for anything else.
func regular(f *os.File, name string, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: name, Err: ErrNotRegular}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (osFS) Mkdir(name string) error {
	if err := os.Mkdir(name, dirMode); err != nil {
		return err
	}
	return os.Chmod(name, dirMode)
}

// ReadDir does not sort, unlike os.ReadDir: no caller needs an order.
func (osFS) ReadDir(name string) ([]fs.DirEntry, error) {
	d, err := os.OpenFile(name, os.O_RDONLY|openFlags, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.ReadDir(-1)
}

func (osFS) Rename(oldname, newname string) error      { return os.Rename(oldname, newname) }
func (osFS) Remove(name string) error                  { return os.Remove(name) }
func (osFS) Lstat(name string) (fs.FileInfo, error)    { return os.Lstat(name) }
func (osFS) PhysicalBytes(info fs.FileInfo) int64      { return physicalBytes(info) }
func (osFS) Owner(info fs.FileInfo) (uid int, ok bool) { return owner(info) }
func (osFS) SameFile(a, b fs.FileInfo) bool            { return os.SameFile(a, b) }
func (osFS) IsRAM(name string) (bool, error)           { return isRAM(name) }
func (osFS) SyncDir(name string) error                 { return syncDir(name) }

func (osFS) Chtimes(name string, atime, mtime time.Time) error {
	return chtimes(name, atime, mtime)
}

func (osFS) Locking(name string) (Locking, error) { return lockingAt(name) }

func (osFS) Space(name string) (Space, error) {
	s, err := space(name)
	if err != nil {
		return Space{}, &fs.PathError{Op: "statfs", Path: name, Err: err}
	}
	return s, nil
}

func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|openFlags, fileMode)
	return locked(f, name, err)
}

func (osFS) LockThere(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|openFlags, 0)
	return locked(f, name, err)
}

// locked locks an open file and returns the file as the lock.
func locked(f *os.File, name string, err error) (io.Closer, error) {
	if err != nil {
		return nil, err
	}
	if err := tryLock(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	// As in Create: the next process must be able to open the file.
	if info, err := f.Stat(); err == nil && info.Mode().Perm()&fileMode != fileMode {
		if err := f.Chmod(fileMode); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}
