package process

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// waitUnread waits until a pipe has no reader any more, and then returns true. waitUnread
// returns false at once for another file, and after ctx ended.
func waitUnread(ctx context.Context, f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		return false
	}
	for ctx.Err() == nil {
		// Without events to wait for, poll still reports the pipe's end.
		fds := []unix.PollFd{{Fd: int32(f.Fd())}}
		n, err := unix.Poll(fds, pollMillis)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false
		}
		if n > 0 {
			return fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
		}
	}
	return false
}

// pollMillis bounds the time for which waitUnread outlives its context.
const pollMillis = 1000
