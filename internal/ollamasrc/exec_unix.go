//go:build unix

package ollamasrc

import (
	"os/exec"
	"syscall"
)

// ownGroup puts the child in a process group of its own. A terminal's Ctrl-C
// then reaches it only through us, once, and its compilers go with it.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

func interrupt(cmd *exec.Cmd) error {
	return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
}
