package measure

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ForgetFile takes a durable file out of the page cache, which needs no rights. ForgetFile
// returns false where the system cannot.
func ForgetFile(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, fmt.Errorf("taking a file out of the page cache: %w", err)
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return false, fmt.Errorf("taking %s out of the page cache: %w", path, err)
	}
	return true, nil
}
