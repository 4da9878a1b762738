package vfs

import (
	"errors"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// dirFlags open a directory as a path only, which needs no right to read the directory.
const dirFlags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC

// noOpenat2 remembers that the kernel is older than 5.6, or that a sandbox forbids
// unknown system calls.
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
