package priority

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// nice leaves nine tenths of a processor to whoever else wants it. With less a lock that is
// held at this priority could be waited for too long.
const nice = 10

// Of ioprio_set(2), which has no wrapper: the last of the levels that are served at all while
// others are. Somebody may come to wait for what is being read.
const (
	ioprioWhoProcess = 1
	ioprioBestEffort = 2 << 13
	ioprioLast       = 7
)

// Lower makes the calling goroutine, until it ends, stand behind others who want processors
// and disks. Both are hints: some disk schedulers have no priorities. It must end: its thread
// does with it.
func Lower() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	tid := unix.Gettid()
	_ = unix.Setpriority(unix.PRIO_PROCESS, tid, nice)
	_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, uintptr(tid), ioprioBestEffort|ioprioLast)
}
