package diskstore

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// aheadNice leaves nine tenths of a processor to whoever else wants it. With less a
// lock that is held at this priority could be waited for too long.
const aheadNice = 10

// Of ioprio_set(2), which has no wrapper: the last of the levels that are served at
// all while others are. Somebody may come to wait for what is being read.
const (
	ioprioWhoProcess = 1
	ioprioBestEffort = 2 << 13
	ioprioLast       = 7
)

// lowerPriority makes the calling goroutine, until it ends, stand behind others who
// want processors and disks. Both are hints: some disk schedulers have no priorities.
func lowerPriority() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	tid := unix.Gettid()
	_ = unix.Setpriority(unix.PRIO_PROCESS, tid, aheadNice)
	_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, uintptr(tid), ioprioBestEffort|ioprioLast)
}

// inPageCache reports whether all of a file is in memory, as far as can be told:
// Linux tells since 6.5.
func inPageCache(b Blob) bool {
	file := osFile(b)
	if file == nil {
		return false
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return false
	}
	page := int64(os.Getpagesize())
	pages := (b.Info().Bytes + page - 1) / page
	whole := false
	err = conn.Control(func(fd uintptr) {
		var stat unix.Cachestat_t
		all := unix.CachestatRange{} // an empty range is the whole file
		whole = unix.Cachestat(uint(fd), &all, &stat, 0) == nil && int64(stat.Cache) >= pages
	})
	return err == nil && whole
}
