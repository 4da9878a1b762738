//go:build unix

package ollamatest

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// interrupt asks the server alone, not its runners, to end.
func (p *Process) interrupt() error {
	return ignoreGone(p.cmd.Process.Signal(syscall.SIGTERM))
}

// kill kills the whole group. A group exists as long as it has a member, so that kill also
// reaches the runners of a dead server.
func (p *Process) kill() error {
	return ignoreGone(syscall.Kill(-p.pid(), syscall.SIGKILL))
}

func killPID(pid int) error {
	return ignoreGone(syscall.Kill(pid, syscall.SIGKILL))
}

func ignoreGone(err error) error {
	if errors.Is(err, syscall.ESRCH) || errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sending a signal: %w", err)
	}
	return nil
}
