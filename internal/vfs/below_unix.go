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

// Below returns the operating system's filesystem for a program that keeps all its
// files below one directory. Elements of a path above root, and root's own, are
// resolved each time, as the system does it, so that a mount may go and come back.
// From root on nothing is resolved twice and no element may be a symbolic link: a
// directory that is swapped for a link, even in the middle of an operation, causes
// an error and leads nowhere. A root that is not this user's, or that
// others may write to, is ErrUnsafe whenever it is opened. Lstat alone goes by path: it opens nothing
// and changes nothing, a lookup calls it for every page of a prompt, and descending
// by descriptor would make it cost three times as much. Paths that are not below
// root are those of OS.
func Below(root string) FS {
	root = filepath.Clean(root)
	return belowFS{root: root, prefix: strings.TrimSuffix(root, "/") + "/"}
}

type belowFS struct {
	osFS         // for Lstat, and for paths that are not below root
	root, prefix string
}

// createFlags and readFlags are openFlags with the flags that package os would add.
const (
	readFlags   = unix.O_RDONLY | openFlags | unix.O_CLOEXEC
	createFlags = unix.O_RDWR | unix.O_CREAT | openFlags | unix.O_CLOEXEC
)

// below returns the path relative to root, false for one that is not below it.
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

// openDir opens a directory for its descriptor to stand in for its path: root
// for ".", or one below.
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

// private returns ErrUnsafe unless an open directory is this user's alone to write
// to.
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

// isLinkAt tells why a directory could not be opened: systems differ in their error.
func isLinkAt(dir int, base string) bool {
	var st unix.Stat_t
	err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
}

// retry runs op again while a signal interrupts it, as it may on a network mount.
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
		err = ErrNotRegular // a link is one more thing that is not a file
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

// chmodDirAt gives a directory its mode back that a umask took bits from.
func chmodDirAt(dir int, base string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Mode&0o777 == dirMode {
		return err
	}
	fd, err := openAt(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		// Not even its owner may open it. The mode is changed by name; who can
		// replace the directory just made could have made it in the first place.
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
		// A directory, in words that differ between systems.
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
