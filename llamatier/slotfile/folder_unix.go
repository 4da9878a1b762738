//go:build unix

package slotfile

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// tryLock locks a directory, and returns false if somebody else has locked it.
func tryLock(f *os.File) (bool, error) {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// removeDead removes a folder whose process has ended. It follows no link, and touches only
// folders of this user that nobody else can change.
func removeDead(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o777 != 0o700 {
		return errors.New("it is not a private folder of this user")
	}
	switch locked, err := tryLock(dir); {
	case err != nil:
		return err
	case !locked:
		return errors.New("its process runs")
	}
	if c, err := net.Dial("unix", filepath.Join(path, SocketName)); err == nil {
		c.Close()
		return errors.New("its engine runs")
	}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name != SocketName && name != mountName && !strings.HasPrefix(name, filePrefix) {
			return fmt.Errorf("it has a file of another program: %s", name)
		}
	}
	for _, name := range names {
		flags := 0
		if name == mountName { // a filesystem that nobody serves any more answers no question, and is asked none
			if err := detach(filepath.Join(path, name)); err != nil {
				return fmt.Errorf("unmount %s: %w", name, err)
			}
			flags = unix.AT_REMOVEDIR
		}
		if err := unix.Unlinkat(fd, name, flags); err != nil && err != unix.ENOENT {
			return err
		}
	}
	return unix.Unlinkat(unix.AT_FDCWD, path, unix.AT_REMOVEDIR)
}
