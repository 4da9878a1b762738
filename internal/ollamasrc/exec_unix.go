//go:build unix

package ollamasrc

import (
	"os/exec"
	"syscall"
)

// ownGroup puts the child in a process group of its own. A terminal's Ctrl-C then reaches
// the child only through this process, once, and ends the child's compilers, too.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

func interrupt(cmd *exec.Cmd) error {
	return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
}
