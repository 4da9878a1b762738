package vfs

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/windows"
)

// openFlags is empty: links are refused by a check before the open.
const openFlags = 0

// clusterBytes is the usual NTFS allocation unit.
const clusterBytes = 4096

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

// syncDir does nothing: NTFS journals directory changes and has no call to wait
// for them.
func syncDir(string) error { return nil }

func tryLock(f *os.File) error { return lockFile(f, windows.LOCKFILE_EXCLUSIVE_LOCK) }

// tryShared takes a lock that excludes those of tryLock alone.
func tryShared(f *os.File) error { return lockFile(f, 0) }

func lockFile(f *os.File, how uint32) error {
	err := windows.LockFileEx(windows.Handle(f.Fd()), how|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, new(windows.Overlapped))
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return ErrLocked
	}
	return err
}

func physicalBytes(info fs.FileInfo) int64 {
	return (info.Size() + clusterBytes - 1) &^ (clusterBytes - 1)
}

func chtimes(name string, atime, mtime time.Time) error { return os.Chtimes(name, atime, mtime) }

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
