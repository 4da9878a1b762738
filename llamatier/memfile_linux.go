package llamatier

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// SavePath is the directory in which a llama-server that this process started finds the files
// of newMemFile, for its option --slot-save-path.
func SavePath() string { return fmt.Sprintf("/proc/%d/fd/", os.Getpid()) }

// newMemFile makes a file in memory that has no name on a disk, and returns its name in
// SavePath. Closing the file frees the memory.
func newMemFile() (f *os.File, name string, err error) {
	// A system with vm.memfd_noexec=2 refuses files that may be executed.
	fd, err := unix.MemfdCreate("kvtier-slot", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("kvtier-slot", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, "", fmt.Errorf("make a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), "kvtier-slot"), strconv.Itoa(fd), nil
}
