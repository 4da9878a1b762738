//go:build unix

package install

import (
	"errors"

	"golang.org/x/sys/unix"
)

// access asks the system, which also knows filesystems mounted read-only.
func access(dir string) error {
	return unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
}

func isReadOnly(err error) bool { return errors.Is(err, unix.EROFS) }
