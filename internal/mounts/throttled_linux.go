package mounts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Throttled is a FUSE filesystem at Dir that shows the files of another directory through a link with a limit
// of bytes per second, for reads and writes together. Throttled is for benchmarks; tests have [Passthrough].
type Throttled struct {
	Dir    string
	server *process
}

// NewThrottled mounts source on dir, an existing empty directory, with no limit yet. The
// error is ErrUnavailable where FUSE cannot be used.
func NewThrottled(source, dir string) (*Throttled, error) {
	if err := available(); err != nil {
		return nil, err
	}
	server, err := startProcess(source, dir)
	if err != nil {
		return nil, errors.Join(err, unmountIfMounted(dir))
	}
	return &Throttled{Dir: dir, server: server}, nil
}

// Limit sets the link's bytes per second; 0 means no limit.
func (m *Throttled) Limit(bytesPerSecond int64) error {
	return m.server.command(command{Limit: &bytesPerSecond})
}

// Close ends the server and unmounts.
func (m *Throttled) Close() error {
	m.server.kill()
	return unmountIfMounted(m.Dir)
}

func unmountIfMounted(dir string) error {
	err := unix.Unmount(dir, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}

// link carries the data of one request after the other.
type link struct {
	mu        sync.Mutex
	perSecond int64     // bytes; 0: no limit
	free      time.Time // time at which all data so far is through
}

func (l *link) limit(perSecond int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.perSecond, l.free = perSecond, time.Time{}
}

// carry waits until n bytes are through.
func (l *link) carry(n int) { time.Sleep(time.Until(l.through(n, time.Now()))) }

// through is the time at which n further bytes are through.
func (l *link) through(n int, now time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.perSecond == 0 {
		return now
	}
	if l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(float64(n) / float64(l.perSecond) * float64(time.Second)))
	return l.free
}

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
