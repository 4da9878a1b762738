//go:build unix && !linux

package process

import (
	"context"
	"os"
	"os/exec"
	"syscall"
)

// startEngine starts a process in a group of its own, so that signals from a terminal do not reach it.
func startEngine(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd.Start()
}

// waitUnread is known on Linux only: elsewhere poll does not report the end of a pipe that is written to.
func waitUnread(context.Context, *os.File) bool { return false }
