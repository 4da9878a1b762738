package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// startEngine starts a process with SIGTERM, SIGINT and SIGHUP blocked, which dies with the calling thread.
func startEngine(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var before, blocked unix.Sigset_t
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		blocked.Val[(sig-1)/64] |= 1 << ((sig - 1) % 64)
	}
	// A child inherits the mask of the thread that starts it.
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &blocked, &before); err != nil {
		return fmt.Errorf("block signals: %w", err)
	}
	err := cmd.Start()
	if e := unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil); err == nil {
		err = e
	}
	return err
}

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
