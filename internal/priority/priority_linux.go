package priority

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// nice is added to the nice value of a thread, which is niceMax at most. It leaves nine tenths
// of a processor to other threads. With a smaller share, other threads could wait too long for
// a lock that is held at this priority.
const (
	nice    = 10
	niceMax = 19
)

// Constants of ioprio_set(2), which has no wrapper: the lowest level that is still served
// beside other levels. The pages that are read must arrive, because a request may wait for
// them.
const (
	ioprioWhoProcess = 1
	ioprioBestEffort = 2 << 13
	ioprioLast       = 7
)

// Lower lowers the priority of the calling goroutine, for processors and disks, until the
// goroutine ends. Both are hints: some disk schedulers have no priorities. The goroutine must
// end, because its thread ends with it.
func Lower() {
	runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
	tid := unix.Gettid()
	if rank, err := unix.Getpriority(unix.PRIO_PROCESS, tid); err == nil { // 20 - nice value
		_ = unix.Setpriority(unix.PRIO_PROCESS, tid, min(20-rank+nice, niceMax))
	}
	_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, uintptr(tid), ioprioBestEffort|ioprioLast)
}
