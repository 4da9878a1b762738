package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/windows"
)

// osFS refuses links by a check before the open.
type osFS struct{}

// Below returns OS: on Windows only administrators may make links, and no call refuses links within a path.
func Below(string) FS { return OS }

// Through is name: there is no Hold.
func Through(name string) string { return name }

func (f osFS) Create(name string) (File, error) {
	return f.created(os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, fileMode))
}

func (osFS) Open(name string) (File, error) { return regular(openNoFollow(name)) }

func (osFS) Uncache(name string) error { return uncached(openNoFollow(name)) }

func openNoFollow(name string) (*os.File, error) {
	info, err := os.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: ErrNotRegular}
	}
	return os.Open(name)
}

func (osFS) Lock(name string) (io.Closer, error) {
	return locked(os.OpenFile(name, os.O_RDWR|os.O_CREATE, fileMode))
}

func (osFS) LockThere(name string) (io.Closer, error) { return locked(os.OpenFile(name, os.O_RDWR, 0)) }

func (osFS) Mkdir(name string) error {
	if err := os.Mkdir(name, dirMode); err != nil {
		return err
	}
	return os.Chmod(name, dirMode)
}

// ReadDir does not sort, unlike os.ReadDir: no caller needs an order.
func (osFS) ReadDir(name string) ([]fs.DirEntry, error) {
	d, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.ReadDir(-1)
}

func (osFS) Rename(oldname, newname string) error { return os.Rename(oldname, newname) }
func (osFS) Remove(name string) error             { return os.Remove(name) }

func (osFS) Chtimes(name string, atime, mtime time.Time) error { return os.Chtimes(name, atime, mtime) }

// SyncDir does nothing: NTFS journals directory changes and has no call to wait for them.
func (osFS) SyncDir(string) error { return nil }

const (
	exclusive = windows.LOCKFILE_EXCLUSIVE_LOCK
	shared    = 0
)

func lockFile(f *os.File, how uint32) error {
	err := windows.LockFileEx(windows.Handle(f.Fd()), how|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, new(windows.Overlapped))
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return ErrLocked
	}
	return err
}

// hostAt returns Locking.Host, the same for all directories.
func hostAt(string) string { return host() }

// clusterBytes is the usual NTFS allocation unit.
const clusterBytes = 4096

func physicalBytes(info fs.FileInfo) int64 {
	return (info.Size() + clusterBytes - 1) &^ (clusterBytes - 1)
}

func owner(fs.FileInfo) (uid int, ok bool) { return 0, false }

func space(name string) (Space, error) {
	path, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return Space{}, err
	}
	var free, total, allFree uint64
	if err := windows.GetDiskFreeSpaceEx(path, &free, &total, &allFree); err != nil {
		return Space{}, err
	}
	return Space{Total: int64(total), Free: int64(free)}, nil
}

// IsNoSpace reports whether err means that the disk or the user's quota is full.
func IsNoSpace(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL) ||
		errors.Is(err, windows.ERROR_DISK_QUOTA_EXCEEDED) || errors.Is(err, syscall.ENOSPC) // of a Mem
}

// IsNoLocks reports whether err means that the filesystem has no locks.
func IsNoLocks(err error) bool { return errors.Is(err, errors.ErrUnsupported) }

// IsStale reports whether err means that the server no longer has a file or a directory.
func IsStale(err error) bool { return errors.Is(err, syscall.ESTALE) } // of a Mem

// IsReadOnly reports whether err means that the filesystem takes no writes.
func IsReadOnly(err error) bool { return errors.Is(err, windows.ERROR_WRITE_PROTECT) }
