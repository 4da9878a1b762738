package process

import (
	"fmt"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// startEngine starts a process with SIGTERM, SIGINT and SIGHUP blocked, which dies with the calling
// thread.
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
