//go:build unix

package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Below returns the operating system's filesystem for a program that keeps all its files
// below one directory. The system resolves the path of root in each operation, so that a
// mount may disappear and come back. Below root, each element is resolved once and may not
// be a symbolic link: swapping a directory for a link, even in the middle of an operation,
// causes an error and leads nowhere else. Opening a root that belongs to another user, or
// that others may write to, fails with ErrUnsafe. Only Lstat works by path: Lstat opens and
// changes nothing, a lookup calls it for every page of a prompt, and descriptors would make
// it three times as slow. Paths outside root behave as in OS.
func Below(root string) FS {
	root = filepath.Clean(root)
	return belowFS{root: root, prefix: strings.TrimSuffix(root, "/") + "/"}
}

type belowFS struct {
	osFS         // for Lstat and for paths outside root
	root, prefix string
}

// createFlags and readFlags are openFlags with the flags that package os would add.
const (
	readFlags   = unix.O_RDONLY | openFlags | unix.O_CLOEXEC
	createFlags = unix.O_RDWR | unix.O_CREAT | openFlags | unix.O_CLOEXEC
)

// below returns the path relative to root; false for a path outside root.
func (b belowFS) below(name string) (rel string, ok bool) {
	return strings.CutPrefix(filepath.Clean(name), b.prefix)
}

// at runs op with the open directory that holds rel, and rel's last element.
func (b belowFS) at(rel string, op func(dir int, base string) error) error {
	dir, err := b.openDir(filepath.Dir(rel))
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return retry(func() error { return op(dir, filepath.Base(rel)) })
}

// openDir opens root, for ".", or a directory below root. The descriptor replaces the
// directory's path.
func (b belowFS) openDir(rel string) (int, error) {
	top, err := openAt(unix.AT_FDCWD, b.root, dirFlags|unix.O_NOFOLLOW, 0)
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

// private returns ErrUnsafe unless an open directory belongs to this user and no other user
// may write to it.
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
		next, err := openAt(at, element, dirFlags|unix.O_NOFOLLOW, 0)
		if err != nil && isLinkAt(at, element) {
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

// isLinkAt reports whether a directory could not be opened because it is a link: errors
// differ between systems.
func isLinkAt(dir int, base string) bool {
	var st unix.Stat_t
	err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
}

// retry repeats op while signals interrupt it, which happens on network mounts.
func retry(op func() error) error {
	for {
		if err := op(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func openAt(dir int, name string, flags int, perm uint32) (fd int, err error) {
	err = retry(func() error {
		fd, err = unix.Openat(dir, name, flags, perm)
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

// open opens the file at rel.
func (b belowFS) open(name, rel string, flags int) (*os.File, error) {
	var fd int
	err := b.at(rel, func(dir int, base string) (err error) {
		fd, err = unix.Openat(dir, base, flags, fileMode)
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

func (b belowFS) Create(name string) (File, error) {
	rel, ok := b.below(name)
	if !ok {
		return b.osFS.Create(name)
	}
	f, err := b.open(name, rel, createFlags|unix.O_EXCL)
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(fileMode); err != nil {
		f.Close()
		b.Remove(name)
		return nil, err
	}
	return f, nil
}

func (b belowFS) Open(name string) (File, error) {
	rel, ok := b.below(name)
	if !ok {
		return b.osFS.Open(name)
	}
	f, err := b.open(name, rel, readFlags)
	return regular(f, name, err)
}

func (b belowFS) Uncache(name string) error {
	rel, ok := b.below(name)
	if !ok {
		return b.osFS.Uncache(name)
	}
	return uncached(b.open(name, rel, readFlags))
}

func (b belowFS) Mkdir(name string) error {
	rel, ok := b.below(name)
	if !ok {
		return b.osFS.Mkdir(name)
	}
	err := b.at(rel, func(dir int, base string) error {
		if err := unix.Mkdirat(dir, base, dirMode); err != nil {
			return err
		}
		return retry(func() error { return chmodDirAt(dir, base) })
	})
	return pathError("mkdir", name, err)
}

// chmodDirAt restores the mode bits that a umask took from a new directory.
func chmodDirAt(dir int, base string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Mode&0o777 == dirMode {
		return err
	}
	fd, err := openAt(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		// Not even the owner may open the directory, so its mode is changed by name. A
		// process that can replace the new directory could have made it, too.
		return unix.Fchmodat(dir, base, dirMode, 0)
	}
	defer unix.Close(fd)
	return unix.Fchmod(fd, dirMode)
}

// openWhole opens a directory for reading and syncing it.
func (b belowFS) openWhole(name, rel string) (*os.File, error) {
	var fd int
	err := b.at(rel, func(dir int, base string) (err error) {
		fd, err = unix.Openat(dir, base, readFlags|unix.O_DIRECTORY, 0)
		if err != nil && isLinkAt(dir, base) {
			err = errLinkInPath
		}
		return err
	})
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (b belowFS) ReadDir(name string) ([]fs.DirEntry, error) {
	rel, ok := b.below(name)
	if !ok {
		return b.osFS.ReadDir(name)
	}
	d, err := b.openWhole(name, rel)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.ReadDir(-1)
}

func (b belowFS) SyncDir(name string) error {
	rel, ok := b.below(name)
	if !ok {
		return b.osFS.SyncDir(name)
	}
	d, err := b.openWhole(name, rel)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func (b belowFS) Rename(oldname, newname string) error {
	from, ok := b.below(oldname)
	to, toOK := b.below(newname)
	if !ok || !toOK {
		return &os.LinkError{Op: "rename", Old: oldname, New: newname, Err: fmt.Errorf("not both below %s: %w", b.root, unix.EXDEV)}
	}
	err := b.at(from, func(fromDir int, fromBase string) error {
		return b.at(to, func(toDir int, toBase string) error {
			var st unix.Stat_t
			if unix.Fstatat(toDir, toBase, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
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

func (b belowFS) Remove(name string) error {
	rel, ok := b.below(name)
	if !ok {
		return b.osFS.Remove(name)
	}
	return pathError("remove", name, b.at(rel, func(dir int, base string) error {
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

func (b belowFS) Chtimes(name string, atime, mtime time.Time) error {
	rel, ok := b.below(name)
	if !ok {
		return b.osFS.Chtimes(name, atime, mtime)
	}
	return pathError("chtimes", name, b.at(rel, func(dir int, base string) error {
		return unix.UtimesNanoAt(dir, base, timespecs(atime, mtime), unix.AT_SYMLINK_NOFOLLOW)
	}))
}

func (b belowFS) Lock(name string) (io.Closer, error) {
	rel, ok := b.below(name)
	if !ok {
		return b.osFS.Lock(name)
	}
	f, err := b.open(name, rel, createFlags)
	return locked(f, name, err)
}

func (b belowFS) LockThere(name string) (io.Closer, error) {
	rel, ok := b.below(name)
	if !ok {
		return b.osFS.LockThere(name)
	}
	f, err := b.open(name, rel, createFlags&^unix.O_CREAT)
	return locked(f, name, err)
}
