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

// process is a started server.
type process struct {
	cmd     *exec.Cmd
	exited  chan struct{} // closed when the server's own process has ended
	drained chan struct{} // closed when no process can write output any more
	gone    bool          // the server and its children are gone
}

// startProcess starts cmd as the leader of a process group, with its output going to out.
// Runners inherit the pipe. With a pipe made by package exec, Wait would wait for the
// runners, too.
func startProcess(cmd *exec.Cmd, out io.Writer) (*process, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe for its output: %w", err)
	}
	cmd.Stdout, cmd.Stderr = writer, writer
	cmd.SysProcAttr = groupLeader()
	p := &process{cmd: cmd, exited: make(chan struct{}), drained: make(chan struct{})}
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
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		reader.Close()
		return nil, err
	}
	go func() {
		defer close(p.drained)
		defer reader.Close()
		io.Copy(out, reader) //nolint:errcheck // it ends when the last writer does
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// status describes the end of a server that has ended.
func (p *process) status() string { return p.cmd.ProcessState.String() }

// processInfo is one row of the system's process table.
type processInfo struct {
	pid, parent, group int
	args               []string // nil where the system does not tell
}

// family lists the live processes of the server with this id: the server, its group and its
// children.
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
// only looks for devices, if the arguments are known.
func (p processInfo) isModelRunner() bool {
	return p.args == nil || slices.Contains(p.args, "runner") && slices.Contains(p.args, "--model")
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
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("waiting for %s: %w", what, context.Cause(ctx))
		}
	}
}
