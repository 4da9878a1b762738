package vfs

import (
	"errors"
	"fmt"
	"os"
)

// Held reports whether somebody holds the lock that Lock of the operating system's FS takes on a
// file. Any number of callers may ask at once. While one asks, a Lock of the file may fail with
// ErrLocked, so try again.
func Held(name string) (bool, error) {
	f, err := OS.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = tryShared(f.(*os.File))
	if errors.Is(err, ErrLocked) {
		return true, nil
	}
	if err != nil {
		err = fmt.Errorf("ask for the lock on %s: %w", name, err)
	}
	return false, err
}
