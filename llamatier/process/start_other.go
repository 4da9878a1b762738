//go:build unix && !linux

package process

import (
	"os/exec"
	"syscall"
)

// startEngine starts a process in a group of its own, so that signals from a terminal do not
// reach it.
func startEngine(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd.Start()
}
