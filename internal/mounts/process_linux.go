package mounts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// ErrUnavailable means that FUSE does not work on this machine or for this user.
var ErrUnavailable = errors.New("FUSE cannot be used")

// available returns ErrUnavailable where FUSE cannot be used.
func available() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: mounting needs root", ErrUnavailable)
	}
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("%w: this machine has none: %w", ErrUnavailable, err)
	}
	return f.Close()
}

// process is a FUSE server in a process of its own.
type process struct {
	cmd     *exec.Cmd
	control io.WriteCloser
	replies chan reply
	stalled chan struct{}
}

// startProcess mounts source on dir, and returns when the mount works.
func startProcess(source, dir string) (*process, error) {
	failed := func(err error) (*process, error) {
		return nil, fmt.Errorf("start the FUSE server of %s: %w", dir, err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), sourceEnv+"="+source, dirEnv+"="+dir)
	cmd.Stderr = os.Stderr
	control, err := cmd.StdinPipe()
	if err != nil {
		return failed(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return failed(err)
	}
	if err := cmd.Start(); err != nil {
		return failed(err)
	}
	p := &process{cmd: cmd, control: control, replies: make(chan reply), stalled: make(chan struct{}, 4096)}
	go p.read(out)
	if err := p.wait(); err != nil {
		p.kill()
		return failed(err)
	}
	return p, nil
}

// read reads the server's output to its end.
func (p *process) read(out io.Reader) {
	defer close(p.replies)
	for lines := json.NewDecoder(out); ; {
		var r reply
		if lines.Decode(&r) != nil {
			return
		}
		if r.Stalled {
			p.stalled <- struct{}{}
			continue
		}
		p.replies <- r
	}
}

// wait waits for the server's answer.
func (p *process) wait() error {
	switch r, ok := <-p.replies; {
	case !ok:
		return errors.New("the FUSE server has ended")
	case r.Error != "":
		return errors.New(r.Error)
	}
	return nil
}

func (p *process) command(c command) error {
	if err := json.NewEncoder(p.control).Encode(c); err != nil {
		return fmt.Errorf("tell the FUSE server: %w", err)
	}
	return p.wait()
}

// kill ends the server and leaves the mount in place.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	for range p.replies { // reads the server's output to its end
	}
	_ = p.cmd.Wait()
	p.control.Close()
}
