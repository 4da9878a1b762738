//go:build unix

package vfs

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// osFS works on open directories, as Below describes. The zero osFS has no root: the system resolves
// every path.
type osFS struct{ root, prefix string }

// Below returns the operating system's filesystem for a program that keeps all its files below one
// directory. The system resolves the path of root in each operation, so that a mount may disappear and
// come back. Below root, each element is resolved once and may not be a symbolic link: swapping a
// directory for a link, even in the middle of an operation, causes an error and leads nowhere else.
// Opening a root that belongs to another user, or that others may write to, fails with ErrUnsafe. Only
// Lstat works by path: Lstat opens and changes nothing, a lookup calls it for every page of a prompt,
// and descriptors would make it three times as slow. Paths outside root behave as in OS.
func Below(root string) FS {
	root = filepath.Clean(root)
	return osFS{root: root, prefix: strings.TrimSuffix(root, "/") + "/"}
}

// openFlags keep every open from following a link in the last path element and from blocking on a FIFO.
const (
	openFlags   = unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	readFlags   = unix.O_RDONLY | openFlags
	createFlags = unix.O_RDWR | unix.O_CREAT | openFlags
)

// OpenDir opens a directory that is no link, for Hold. No right to read it is needed on Linux.
func OpenDir(name string) (*os.File, error) {
	fd, err := openAt(unix.AT_FDCWD, name, dirFlags|unix.O_NOFOLLOW)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

type heldDir struct {
	path, through string // its path, and one that leads to the descriptor
	dir           *os.File
}

var held atomic.Pointer[[]heldDir]

// Hold has OS and Below reach path and everything in it through an open directory from now on, because this
// process may no longer search a directory above it. Call it before other goroutines use the path. It needs
// Linux's /proc.
func Hold(path string, dir *os.File) error {
	h := heldDir{filepath.Clean(path), fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), dir}
	if _, err := os.Lstat(h.through + "/."); err != nil {
		return err
	}
	var all []heldDir
	if before := held.Load(); before != nil {
		all = *before
	}
	all = append(slices.Clone(all), h)
	held.Store(&all)
	return nil
}

// Through is a path by which the system finds name, which may be in a directory of Hold.
func Through(name string) string {
	all := held.Load()
	if all == nil {
		return name
	}
	for _, h := range *all {
		if rel, ok := strings.CutPrefix(filepath.Clean(name)+"/", h.path+"/"); ok {
			return h.through + "/./" + strings.TrimSuffix(rel, "/")
		}
	}
	return name
}

// below returns the path relative to root; false for a path outside root.
func (f osFS) below(name string) (rel string, ok bool) {
	if f.root == "" {
		return "", false
	}
	return strings.CutPrefix(filepath.Clean(name), f.prefix)
}

// at runs op with an open directory and the path from there to name: its last element below root, and
// all of it outside.
func (f osFS) at(name string, op func(dir int, base string) error) error {
	rel, ok := f.below(name)
	if !ok {
		return retry(func() error { return op(unix.AT_FDCWD, Through(name)) })
	}
	dir, err := f.openDir(filepath.Dir(rel))
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return retry(func() error { return op(dir, filepath.Base(rel)) })
}

// openDir opens root, for ".", or a directory below root. The descriptor replaces the directory's path.
func (f osFS) openDir(rel string) (int, error) {
	top, err := openAt(unix.AT_FDCWD, Through(f.root), dirFlags|unix.O_NOFOLLOW)
	if err != nil {
		return top, err
	}
	if err := private(top); err != nil || rel != "." {
		defer unix.Close(top)
		if err != nil {
			return -1, err
		}
		return openDirAt(top, rel)
	}
	return top, nil
}

// private returns ErrUnsafe unless an open directory belongs to this user and no other user may write to it.
func private(dir int) error {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return err
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return ErrUnsafe
	}
	return nil
}

// walkDirAt opens the directory rel below top, one element after another.
func walkDirAt(top int, rel string) (int, error) {
	at := top
	for element := range strings.SplitSeq(rel, "/") {
		next, err := openAt(at, element, dirFlags|unix.O_NOFOLLOW)
		if err != nil && isAt(at, element, unix.S_IFLNK) {
			err = errLinkInPath
		}
		if at != top {
			unix.Close(at)
		}
		if err != nil {
			return -1, err
		}
		at = next
	}
	return at, nil
}

// isAt reports whether a name belongs to a directory or a link: errors differ between systems.
func isAt(dir int, base string, fileType uint32) bool {
	var st unix.Stat_t
	err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && uint32(st.Mode)&unix.S_IFMT == fileType
}

// retry repeats op while signals interrupt it, which happens on network mounts.
func retry(op func() error) error {
	for {
		if err := op(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func openAt(dir int, name string, flags int) (fd int, err error) {
	err = retry(func() error {
		fd, err = unix.Openat(dir, name, flags, 0)
		return err
	})
	return fd, err
}

func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

func (f osFS) open(name string, flags int) (*os.File, error) {
	var fd int
	err := f.at(name, func(dir int, base string) (err error) {
		fd, err = unix.Openat(dir, base, flags, fileMode)
		if err != nil && flags&unix.O_DIRECTORY != 0 && isAt(dir, base, unix.S_IFLNK) {
			err = errLinkInPath
		}
		return err
	})
	if errors.Is(err, unix.ELOOP) {
		err = ErrNotRegular // a link is not a regular file either
	}
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (f osFS) Create(name string) (File, error) {
	return f.created(f.open(name, createFlags|unix.O_EXCL))
}

func (f osFS) Open(name string) (File, error) { return regular(f.open(name, readFlags)) }

func (f osFS) Uncache(name string) error { return uncached(f.open(name, readFlags)) }

func (f osFS) Lock(name string) (io.Closer, error) { return locked(f.open(name, createFlags)) }

func (f osFS) LockThere(name string) (io.Closer, error) {
	return locked(f.open(name, createFlags&^unix.O_CREAT))
}

func (f osFS) Mkdir(name string) error {
	return pathError("mkdir", name, f.at(name, func(dir int, base string) error {
		if err := unix.Mkdirat(dir, base, dirMode); err != nil {
			return err
		}
		return retry(func() error { return chmodDirAt(dir, base) })
	}))
}

// chmodDirAt restores the mode bits that a umask took from a new directory.
func chmodDirAt(dir int, base string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Mode&0o777 == dirMode {
		return err
	}
	fd, err := openAt(dir, base, readFlags|unix.O_DIRECTORY)
	if err != nil {
		// Not even the owner may open the directory, so its mode is changed by name. A
		// process that can replace the new directory could have made it, too.
		return unix.Fchmodat(dir, base, dirMode, 0)
	}
	defer unix.Close(fd)
	return unix.Fchmod(fd, dirMode)
}

// ReadDir does not sort, unlike os.ReadDir: no caller needs an order.
func (f osFS) ReadDir(name string) ([]fs.DirEntry, error) {
	d, err := f.open(name, readFlags|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.ReadDir(-1)
}

func (f osFS) SyncDir(name string) error {
	d, err := f.open(name, readFlags|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func (f osFS) Rename(oldname, newname string) error {
	_, from := f.below(oldname)
	_, to := f.below(newname)
	if from != to {
		return &os.LinkError{Op: "rename", Old: oldname, New: newname, Err: fmt.Errorf("not both below %s: %w", f.root, unix.EXDEV)}
	}
	err := f.at(oldname, func(fromDir int, fromBase string) error {
		return f.at(newname, func(toDir int, toBase string) error {
			if isAt(toDir, toBase, unix.S_IFDIR) {
				return unix.EEXIST // as os.Rename has it
			}
			return unix.Renameat(fromDir, fromBase, toDir, toBase)
		})
	})
	if err != nil {
		return &os.LinkError{Op: "rename", Old: oldname, New: newname, Err: err}
	}
	return nil
}

func (f osFS) Remove(name string) error {
	return pathError("remove", name, f.at(name, func(dir int, base string) error {
		err := unix.Unlinkat(dir, base, 0)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return err
		}
		// The path may be a directory: errors differ between systems.
		if rmdir := unix.Unlinkat(dir, base, unix.AT_REMOVEDIR); !errors.Is(rmdir, unix.ENOTDIR) {
			return rmdir
		}
		return err
	}))
}

// Chtimes sets the times of a link itself, where os.Chtimes sets those of its target.
func (f osFS) Chtimes(name string, atime, mtime time.Time) error {
	times := []unix.Timespec{unix.NsecToTimespec(atime.UnixNano()), unix.NsecToTimespec(mtime.UnixNano())}
	return pathError("chtimes", name, f.at(name, func(dir int, base string) error {
		return unix.UtimesNanoAt(dir, base, times, unix.AT_SYMLINK_NOFOLLOW)
	}))
}

const (
	exclusive = unix.LOCK_EX
	shared    = unix.LOCK_SH
)

// lockFile uses flock, whose owner is the open file: two stores in one process exclude each other, too.
func lockFile(f *os.File, how int) error {
	err := retry(func() error { return unix.Flock(int(f.Fd()), how|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrLocked
	}
	return err
}

// hostAt returns Locking.Host for the files of a directory. Two mounts of one network filesystem have
// two device numbers, the same in all containers of a system, and may keep separate locks. A directory
// without a known number shares its locks with no other directory.
func hostAt(name string) string {
	fi, err := os.Stat(Through(name))
	if err == nil {
		if st, ok := fi.Sys().(*syscall.Stat_t); ok {
			return hostOn(fmt.Sprint(st.Dev))
		}
	}
	return hostOn(rand.Text())
}

// blockBytes is the unit of st_blocks, for every block size of the filesystem.
const blockBytes = 512

// physicalBytes are the length where the filesystem has not allocated a block yet, or counts too many.
func physicalBytes(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Blocks > 0 && st.Blocks <= math.MaxInt64/blockBytes {
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
