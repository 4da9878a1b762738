//go:build unix

package install

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// access asks the system, which also knows filesystems mounted read-only.
func access(dir string) error {
	return unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
}

// lockDir locks a directory for other processes, until unlock is called or the process ends.
func lockDir(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil // which unlocks
}

func isReadOnly(err error) bool { return errors.Is(err, unix.EROFS) }
