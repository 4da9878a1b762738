//go:build unix

package tierenv

import "golang.org/x/sys/unix"

// Writable asks the system, which also knows filesystems mounted read-only.
func Writable(dir string) error {
	return unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
}
