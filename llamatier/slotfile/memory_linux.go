package slotfile

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// newMemory makes a file in memory, and returns the path by which other processes open it.
// Closing the file frees the memory.
func newMemory() (f *os.File, path string, err error) {
	// A system with vm.memfd_noexec=2 refuses files that may be executed.
	fd, err := unix.MemfdCreate("kvtier-slot", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("kvtier-slot", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, "", fmt.Errorf("make a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), "kvtier-slot"), fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), nil
}
