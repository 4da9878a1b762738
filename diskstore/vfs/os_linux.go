package vfs

import (
	"errors"
	"io/fs"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

func isRAM(name string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(name, &st); err != nil {
		return false, &fs.PathError{Op: "statfs", Path: name, Err: err}
	}
	// The field's type differs between architectures; the magic fits in 32 bits.
	kind := uint32(st.Type)
	return kind == unix.TMPFS_MAGIC || kind == unix.RAMFS_MAGIC, nil
}

// uncache drops the clean pages of a file from the page cache. A network filesystem then
// asks its server again.
func uncache(f *os.File) error {
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return &fs.PathError{Op: "fadvise", Path: f.Name(), Err: err}
	}
	return nil
}

// dirFlags open a directory as a path only, which needs no right to read the directory.
const dirFlags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC

// noOpenat2 remembers that the kernel is older than 5.6, or that a sandbox forbids unknown system calls.
var noOpenat2 atomic.Bool

// openDirAt opens the directory rel below top, and refuses links.
func openDirAt(top int, rel string) (fd int, err error) {
	if noOpenat2.Load() {
		return walkDirAt(top, rel)
	}
	how := unix.OpenHow{Flags: dirFlags, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	err = retry(func() error {
		fd, err = unix.Openat2(top, rel, &how)
		return err
	})
	switch {
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
		noOpenat2.Store(true)
		return walkDirAt(top, rel)
	case errors.Is(err, unix.ELOOP):
		err = errLinkInPath
	}
	return fd, err
}
