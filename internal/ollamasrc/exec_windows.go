package ollamasrc

import (
	"os/exec"
	"syscall"
)

// ownGroup keeps a console's Ctrl-C from the child: this process decides how to react.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// interrupt kills: Windows has no signal for a process group.
func interrupt(cmd *exec.Cmd) error {
	return cmd.Process.Kill()
}
