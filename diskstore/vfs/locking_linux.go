package vfs

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

func lockingAt(name string) (Locking, error) {
	l := Locking{Reach: ReachHost, Host: hostAt(name)}
	path, err := realPath(name)
	if err != nil {
		return l, fmt.Errorf("find the mount of %s: %w", name, err)
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return l, fmt.Errorf("find the mount of %s: %w", name, err)
	}
	if m, ok := mountOf(string(text), path); ok {
		l.Reach, l.Why = reachOf(m.fsType, m.options)
	} else { // below a chroot
		l.Why = "a mount that the system does not list"
	}
	var up unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) == nil {
		l.Machine, l.Up = machine(), time.Duration(up.Nano())
	}
	return l, nil
}

// realPath is the path of a file that the mount table has it by, also where this process may not search the
// directories above it.
func realPath(name string) (string, error) {
	fd, err := openAt(unix.AT_FDCWD, Through(name), unix.O_PATH|unix.O_CLOEXEC)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
}

var machine = sync.OnceValue(func() string {
	id, err := os.ReadFile("/etc/machine-id")
	if err != nil {
		return ""
	}
	name, _ := os.Hostname()
	return machineName(string(id), name)
})

// runningSystem changes with each start, and is the same in all containers. Without /proc it
// is the host's name.
func runningSystem() string {
	if id, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		return string(id)
	}
	name, _ := os.Hostname() // all systems without a name look like one
	return name
}
