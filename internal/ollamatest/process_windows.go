package ollamatest

import (
	"errors"
	"syscall"
)

// Windows has no groups of processes: a server's runners would outlive it, so none is started.

func groupLeader() *syscall.SysProcAttr { return nil }

func (p *Process) interrupt() error { return p.kill() }

func (p *Process) kill() error { return p.cmd.Process.Kill() }

func killPID(int) error { return errors.ErrUnsupported }

func processTable() ([]processInfo, error) { return nil, errors.ErrUnsupported }
