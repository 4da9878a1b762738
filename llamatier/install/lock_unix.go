//go:build unix

package install

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

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
