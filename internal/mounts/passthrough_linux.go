package mounts

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Op is a kind of request that the kernel sends to a FUSE filesystem.
type Op string

// The requests that can be made to fail or stall.
const (
	OpLookup   Op = "lookup"
	OpGetAttr  Op = "getattr"
	OpSetAttr  Op = "setattr"
	OpMkdir    Op = "mkdir"
	OpUnlink   Op = "unlink"
	OpRmdir    Op = "rmdir"
	OpRename   Op = "rename"
	OpCreate   Op = "create"
	OpOpen     Op = "open"
	OpRead     Op = "read"
	OpWrite    Op = "write"
	OpFlush    Op = "flush"
	OpFsync    Op = "fsync"
	OpOpenDir  Op = "opendir"
	OpReadDir  Op = "readdir"
	OpFsyncDir Op = "fsyncdir"
	OpStatFs   Op = "statfs"
)

// AllOps are all requests that can be made to fail or stall.
var AllOps = []Op{
	OpLookup, OpGetAttr, OpSetAttr, OpMkdir, OpUnlink, OpRmdir, OpRename, OpCreate, OpOpen, OpRead, OpWrite, OpFlush,
	OpFsync, OpOpenDir, OpReadDir, OpFsyncDir, OpStatFs,
}

// Passthrough is a FUSE filesystem at Dir that shows the files of another
// directory. The kernel caches nothing of it, so that every use is a request.
type Passthrough struct {
	Dir string // where it is mounted

	t       testing.TB
	source  string
	server  *exec.Cmd // nil while it does not run
	control io.WriteCloser
	replies chan reply
	stalled chan struct{}
}

// NewPassthrough mounts source and unmounts it when the test ends. It skips the
// test where FUSE cannot be used.
func NewPassthrough(t testing.TB, source string) *Passthrough {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting FUSE needs root")
	}
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skipf("this machine has no FUSE: %v", err)
	} else {
		f.Close()
	}
	p := &Passthrough{Dir: t.TempDir(), t: t, source: source}
	t.Cleanup(p.Unmount)
	p.Mount()
	return p
}

// Mount mounts the filesystem again after Unmount.
func (p *Passthrough) Mount() {
	p.t.Helper()
	p.server = exec.Command("/proc/self/exe")
	p.server.Env = append(os.Environ(), sourceEnv+"="+p.source, dirEnv+"="+p.Dir)
	p.server.Stderr = os.Stderr
	control, err := p.server.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	out, err := p.server.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.server.Start(); err != nil {
		p.server = nil
		p.t.Fatalf("start the FUSE server: %v", err)
	}
	p.control, p.replies, p.stalled = control, make(chan reply), make(chan struct{}, 4096)
	go func(replies chan reply, stalled chan struct{}) {
		defer close(replies)
		for lines := json.NewDecoder(out); ; {
			var r reply
			if lines.Decode(&r) != nil {
				return
			}
			if r.Stalled {
				stalled <- struct{}{}
				continue
			}
			replies <- r
		}
	}(p.replies, p.stalled)
	p.wait()
}

// wait waits for the server's answer.
func (p *Passthrough) wait() {
	p.t.Helper()
	if r, ok := <-p.replies; !ok || r.Error != "" {
		p.t.Fatalf("pass %s through at %s: %s", p.source, p.Dir, r.Error)
	}
}

func (p *Passthrough) command(c command) {
	p.t.Helper()
	if err := json.NewEncoder(p.control).Encode(c); err != nil {
		p.t.Fatalf("tell the FUSE server: %v", err)
	}
	p.wait()
}

// Fail makes requests of the given kinds fail with errno until Heal.
func (p *Passthrough) Fail(errno syscall.Errno, ops ...Op) {
	p.t.Helper()
	p.command(command{Ops: ops, Errno: errno})
}

// FailOnce makes the next request of each of the given kinds fail with errno.
func (p *Passthrough) FailOnce(errno syscall.Errno, ops ...Op) {
	p.t.Helper()
	for _, op := range ops {
		p.command(command{Ops: []Op{op}, Errno: errno, Once: true})
	}
}

// Stall makes requests of the given kinds wait until Heal. The channel receives
// a value for each that begins to wait.
func (p *Passthrough) Stall(ops ...Op) <-chan struct{} {
	p.t.Helper()
	p.command(command{Ops: ops, Stall: true})
	return p.stalled
}

// Heal ends all faults and lets requests that wait go on.
func (p *Passthrough) Heal() {
	p.t.Helper()
	p.command(command{Heal: true})
}

// Kill ends the server and leaves the mount in place: what waits for an answer
// and all that comes later fails with ECONNABORTED or ENOTCONN.
func (p *Passthrough) Kill() {
	if p.server == nil {
		return
	}
	_ = p.server.Process.Kill()
	for range p.replies { // to the end of its output
	}
	_ = p.server.Wait()
	p.control.Close()
	p.server = nil
}

// Vanish takes the mount away lazily: its path shows the empty directory below
// at once, and files that are open go on working until Kill or Unmount.
func (p *Passthrough) Vanish() {
	p.t.Helper()
	if err := unix.Unmount(p.Dir, unix.MNT_DETACH); err != nil {
		p.t.Fatalf("unmount %s: %v", p.Dir, err)
	}
}

// Unmount ends the server and unmounts, whatever state the mount is in.
func (p *Passthrough) Unmount() {
	p.Kill()
	_ = unix.Unmount(p.Dir, unix.MNT_DETACH) // EINVAL when it has vanished
}
