package engines

import (
	"os/exec"
	"syscall"
)

// dieWithTest lets a process end with this one, however this one ends.
func dieWithTest(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
