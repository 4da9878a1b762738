package collect

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// withSocket calls use with a path of the socket that is short enough. The path leads through a
// descriptor of the directory, which follows no link.
func withSocket(dir string, use func(path string) error) error {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	through := fmt.Sprintf("/proc/self/fd/%d", fd)
	if _, err := os.Stat(through); err != nil {
		return withShortPath(dir, use) // there is no /proc
	}
	return use(through + "/" + socketName)
}
