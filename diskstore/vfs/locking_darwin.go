package vfs

import (
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

func lockingAt(name string) (Locking, error) {
	l := Locking{Reach: ReachHost, Host: hostAt(name)}
	var st unix.Statfs_t
	if err := unix.Statfs(name, &st); err != nil {
		return l, &fs.PathError{Op: "statfs", Path: name, Err: err}
	}
	l.Why = unix.ByteSliceToString(st.Fstypename[:])
	if st.Flags&unix.MNT_LOCAL != 0 {
		l.Reach = ReachDisk
	}
	return l, nil
}

// runningSystem changes with each start.
func runningSystem() string {
	if id, err := unix.Sysctl("kern.bootsessionuuid"); err == nil {
		return id
	}
	name, _ := os.Hostname() // all systems without a name look like one
	return name
}
