package measure

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// OnCore returns the time that a core worked for fn, which starts no goroutine: the CPU time of the
// calling thread. Other processes on the core do not count.
func OnCore(fn func() error) (time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := threadTime()
	if err != nil {
		return 0, err
	}
	if err := fn(); err != nil {
		return 0, err
	}
	after, err := threadTime()
	return after - before, err
}

func threadTime() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err
}
