//go:build unix

package vfs

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// openFlags keep every open from following a link in the last path element and
// from blocking on a FIFO. O_CLOEXEC is added by package os.
const openFlags = unix.O_NOFOLLOW | unix.O_NONBLOCK

// blockBytes is the unit of st_blocks, for every block size of the filesystem.
const blockBytes = 512

func openNoFollow(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|openFlags, 0)
	if errors.Is(err, unix.ELOOP) {
		// A link is not a regular file either.
		return nil, &fs.PathError{Op: "open", Path: name, Err: ErrNotRegular}
	}
	return f, err
}

// chtimes sets the times of a link itself, where os.Chtimes sets those of its target.
func chtimes(name string, atime, mtime time.Time) error {
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, name, timespecs(atime, mtime), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "chtimes", Path: name, Err: err}
	}
	return nil
}

func timespecs(atime, mtime time.Time) []unix.Timespec {
	return []unix.Timespec{unix.NsecToTimespec(atime.UnixNano()), unix.NsecToTimespec(mtime.UnixNano())}
}

func syncDir(name string) error {
	d, err := os.OpenFile(name, os.O_RDONLY|openFlags, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// tryLock uses flock, whose owner is the open file: two stores in one process exclude each
// other, too.
func tryLock(f *os.File) error { return flock(f, unix.LOCK_EX) }

// tryShared takes a lock that excludes those of tryLock alone.
func tryShared(f *os.File) error { return flock(f, unix.LOCK_SH) }

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return ErrLocked
		default:
			return err
		}
	}
}

func physicalBytes(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int64(st.Blocks) * blockBytes
	}
	return info.Size()
}

func owner(info fs.FileInfo) (uid int, ok bool) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid), true
	}
	return 0, false
}

// IsNoSpace reports whether err means that the disk or the user's quota is full.
func IsNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// IsNoLocks reports whether err means that the filesystem has no locks.
func IsNoLocks(err error) bool {
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, unix.ENOLCK)
}

// IsStale reports whether err means that the server no longer has a file or a directory:
// another machine has removed or replaced it.
func IsStale(err error) bool { return errors.Is(err, unix.ESTALE) }

// IsReadOnly reports whether err means that the filesystem takes no writes.
func IsReadOnly(err error) bool { return errors.Is(err, unix.EROFS) }
