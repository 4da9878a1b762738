package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"
)

var (
	// ErrLocked reports that another holder has the lock.
	ErrLocked = errors.New("vfs: locked by another holder")

	// ErrNotRegular reports a path that is not a regular file: a directory, a
	// symbolic link, a FIFO, a device or a socket.
	ErrNotRegular = errors.New("vfs: not a regular file")

	// ErrUnsafe reports a directory that belongs to another user, or that the group or others may write to.
	ErrUnsafe = errors.New("vfs: directory belongs to, or can be written by, others")

	// errLinkInPath is the ErrNotRegular of a path through a link.
	errLinkInPath = fmt.Errorf("a directory of the path is a symbolic link, remove it: %w", ErrNotRegular)
)

// IsRefused reports whether err means that this process lacks the rights for an operation, or
// that the filesystem takes no writes.
func IsRefused(err error) bool { return IsReadOnly(err) || errors.Is(err, fs.ErrPermission) }

// File is an open regular file. Methods may be called from several goroutines,
// except that Writes must not overlap.
type File interface {
	io.ReaderAt
	io.Writer // after the bytes written through this File
	io.Closer

	// Sync returns once the file's content and length are on the device. After an error the content
	// stays in doubt: the kernel may have marked it clean, so that a second Sync proves nothing.
	Sync() error

	// Stat describes the open file.
	Stat() (fs.FileInfo, error)
}

// Space is the state of a filesystem, in bytes.
type Space struct {
	Total int64
	Free  int64 // available to this user
}

// FS is a filesystem. Paths are those of path/filepath. Errors carry the operation and the path, and
// satisfy errors.Is with fs.ErrNotExist and fs.ErrExist as those of the operating system.
type FS interface {
	// Create makes a new file of mode 0600 for writing and reading. Create fails with fs.ErrExist when
	// anything has that name. The name is durable after SyncDir of its directory.
	Create(name string) (File, error)

	// Open opens a regular file for reading without ever blocking, and returns
	// ErrNotRegular for anything else.
	Open(name string) (File, error)

	// Uncache makes this machine drop the cached bytes of a file, as far as the system allows, so that
	// the next Open reads the bytes of the device or the server. Where the system has no such call,
	// Uncache does nothing. Data that is not on the device stays.
	Uncache(name string) error

	// Mkdir makes one directory of mode 0700. Mkdir fails with fs.ErrExist when anything has that name.
	Mkdir(name string) error

	// ReadDir lists a directory in no order. Entries that vanish meanwhile may be missing in the result.
	ReadDir(name string) ([]fs.DirEntry, error)

	// Rename atomically gives a file a new name, and replaces a file of that name. Rename fails with
	// fs.ErrExist when a directory has that name. The rename is durable after SyncDir of both directories.
	Rename(oldname, newname string) error

	// Remove removes a file or an empty directory.
	Remove(name string) error

	// Lstat describes a path. Of a symbolic link it describes the link itself.
	Lstat(name string) (fs.FileInfo, error)

	// Chtimes sets a file's access and modification time.
	Chtimes(name string, atime, mtime time.Time) error

	// SyncDir returns once the directory's entries are on the device.
	SyncDir(name string) error

	// Lock takes an exclusive lock on the file, and creates a missing file. Lock returns
	// ErrLocked at once when this process or another holds the lock. Closing the result, or
	// the death of the process, releases the lock.
	Lock(name string) (io.Closer, error)

	// LockThere does as Lock, and does not create a missing file.
	LockThere(name string) (io.Closer, error)

	// Locking describes the locks of the filesystem that holds name. Reach is ReachHost if unknown.
	Locking(name string) (Locking, error)

	// Space reports on the filesystem that holds name.
	Space(name string) (Space, error)

	// PhysicalBytes is the disk space a file of this FS occupies.
	PhysicalBytes(info fs.FileInfo) int64

	// Owner returns the user id that owns a file of this FS, false where there is none.
	Owner(info fs.FileInfo) (uid int, ok bool)

	// SameFile reports whether two descriptions are of one file or directory, as
	// far as the filesystem's numbers tell.
	SameFile(a, b fs.FileInfo) bool

	// IsRAM reports whether name is on a filesystem in memory, which is empty after a
	// restart; false if unknown.
	IsRAM(name string) (bool, error)
}
