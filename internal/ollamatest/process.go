package ollamatest

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"time"
)

// Process is a started server.
type Process struct {
	Exited  chan struct{} // closed when the server's own process has ended
	Drained chan struct{} // closed when no process can write output any more

	cmd  *exec.Cmd
	gone bool // the server and its children are gone
}

// StartProcess starts cmd as the leader of a process group, with its output going to out. On Linux the
// process is asked to end when this one ends in any way. Runners inherit the pipe. With a pipe made by
// package exec, Wait would wait for the runners, too.
func StartProcess(cmd *exec.Cmd, out io.Writer) (*Process, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe for its output: %w", err)
	}
	cmd.Stdout, cmd.Stderr = writer, writer
	cmd.SysProcAttr = groupLeader()
	p := &Process{cmd: cmd, Exited: make(chan struct{}), Drained: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Linux ends the server when the thread that started it ends, so this thread stays
		// as long as the server runs.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		writer.Close()
		started <- err
		if err == nil {
			cmd.Wait() //nolint:errcheck // the state is in cmd.ProcessState
			close(p.Exited)
		}
	}()
	if err := <-started; err != nil {
		reader.Close()
		return nil, err
	}
	go func() {
		defer close(p.Drained)
		defer reader.Close()
		io.Copy(out, reader) //nolint:errcheck // it ends when the last writer does
	}()
	return p, nil
}

func (p *Process) pid() int { return p.cmd.Process.Pid }

func (p *Process) hasExited() bool {
	select {
	case <-p.Exited:
		return true
	default:
		return false
	}
}

// status describes the end of a server that has ended.
func (p *Process) status() string { return p.cmd.ProcessState.String() }

// processInfo is one row of the system's process table.
type processInfo struct {
	pid, parent, group int
	args               []string
}

// family lists the live processes of the server with this id: the server, its group and its children.
func family(pid int) ([]processInfo, error) {
	table, err := processTable()
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	return slices.DeleteFunc(table, func(p processInfo) bool {
		return p.pid != pid && p.parent != pid && p.group != pid
	}), nil
}

// isModelRunner distinguishes "ollama runner --ollama-engine --model …" from a runner that
// only looks for devices.
func (p processInfo) isModelRunner() bool {
	return slices.Contains(p.args, "runner") && slices.Contains(p.args, "--model")
}

const (
	pollMin = 2 * time.Millisecond
	pollMax = 100 * time.Millisecond
)

// poll calls done at growing intervals until done returns true or an error.
func poll(ctx context.Context, what string, done func() (bool, error)) error {
	for wait := pollMin; ; wait = min(2*wait, pollMax) {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
		}
	}
}
