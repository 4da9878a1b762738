package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"
)

var (
	// ErrLocked reports that another holder has the lock Lock was asked for.
	ErrLocked = errors.New("vfs: locked by another holder")

	// ErrNotRegular reports a path that is not a regular file: a directory, a
	// symbolic link, a FIFO, a device or a socket.
	ErrNotRegular = errors.New("vfs: not a regular file")

	// ErrUnsafe reports a directory that belongs to another user, or that its group
	// or others may write to.
	ErrUnsafe = errors.New("vfs: directory belongs to, or can be written by, others")

	// errLinkInPath is the ErrNotRegular of a path that leads through a link.
	errLinkInPath = fmt.Errorf("a directory of the path is a symbolic link, remove it: %w", ErrNotRegular)
)

// File is an open regular file. Methods may be called from several goroutines,
// except that Writes must not overlap.
type File interface {
	io.ReaderAt
	io.Writer // after the bytes written through this File
	io.Closer

	// Sync returns once the file's content and length are on the device. After
	// an error the content is in doubt for good: the kernel may have marked it
	// clean, so a second Sync proves nothing.
	Sync() error

	// Stat describes the open file.
	Stat() (fs.FileInfo, error)
}

// Space is the state of a filesystem, in bytes.
type Space struct {
	Total int64
	Free  int64 // available to this user
}

// FS is a filesystem. Paths are those of path/filepath. Errors satisfy
// errors.Is with fs.ErrNotExist and fs.ErrExist where the operating system's
// do, and carry the operation and the path.
type FS interface {
	// Create makes a new file of mode 0600 for writing and reading. It fails
	// with fs.ErrExist when anything has that name. The name is durable after
	// SyncDir of its directory.
	Create(name string) (File, error)

	// Open opens a regular file for reading without ever blocking, and returns
	// ErrNotRegular for anything else.
	Open(name string) (File, error)

	// Uncache makes this machine drop the cached bytes of a file, as far as the system
	// allows, so that the next Open reads the bytes of the device or the server.
	// Where the system has no such call, Uncache does nothing. Data that is not on
	// the device stays.
	Uncache(name string) error

	// Mkdir makes one directory of mode 0700. It fails with fs.ErrExist when
	// anything has that name.
	Mkdir(name string) error

	// ReadDir lists a directory in no order. Entries that vanish meanwhile may
	// or may not be in it.
	ReadDir(name string) ([]fs.DirEntry, error)

	// Rename atomically gives a file a new name, replacing a file that has it;
	// when a directory has it, it fails with fs.ErrExist. It is durable after
	// SyncDir of both directories.
	Rename(oldname, newname string) error

	// Remove removes a file or an empty directory.
	Remove(name string) error

	// Lstat describes a path, and a symbolic link itself.
	Lstat(name string) (fs.FileInfo, error)

	// Chtimes sets a file's access and modification time.
	Chtimes(name string, atime, mtime time.Time) error

	// SyncDir returns once the directory's entries are on the device.
	SyncDir(name string) error

	// Lock takes an exclusive lock on the file, creating it when missing, and
	// returns ErrLocked at once when it is held, by this process or another.
	// Closing the result or the death of the process releases it.
	Lock(name string) (io.Closer, error)

	// LockThere is Lock for a file that is not made when it is missing.
	LockThere(name string) (io.Closer, error)

	// Locking says who sees the locks of the filesystem that holds name. Where
	// that cannot be told Reach is ReachHost.
	Locking(name string) (Locking, error)

	// Space reports on the filesystem that holds name.
	Space(name string) (Space, error)

	// PhysicalBytes is the disk space a file of this FS occupies.
	PhysicalBytes(info fs.FileInfo) int64

	// Owner returns the user id that owns a file of this FS, false where there
	// is none.
	Owner(info fs.FileInfo) (uid int, ok bool)

	// SameFile reports whether two descriptions are of one file or directory, as
	// far as the filesystem's numbers tell.
	SameFile(a, b fs.FileInfo) bool

	// IsRAM reports whether name is on a filesystem that lives in memory and
	// is empty after a restart; false where that cannot be told.
	IsRAM(name string) (bool, error)
}
