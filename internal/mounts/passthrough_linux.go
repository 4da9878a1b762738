package mounts

import (
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
	Dir string // mount point

	t      testing.TB
	source string
	server *process // nil while no server runs
}

// NewPassthrough mounts source and unmounts it when the test ends. NewPassthrough skips the
// test where FUSE cannot be used.
func NewPassthrough(t testing.TB, source string) *Passthrough {
	t.Helper()
	if err := available(); err != nil {
		t.Skip(err)
	}
	p := &Passthrough{Dir: t.TempDir(), t: t, source: source}
	t.Cleanup(p.Unmount)
	p.Mount()
	return p
}

// Mount mounts the filesystem again after Unmount.
func (p *Passthrough) Mount() {
	p.t.Helper()
	server, err := startProcess(p.source, p.Dir)
	if err != nil {
		p.t.Fatal(err)
	}
	p.server = server
}

func (p *Passthrough) command(c command) {
	p.t.Helper()
	if err := p.server.command(c); err != nil {
		p.t.Fatal(err)
	}
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

// Stall makes requests of the given kinds wait until Heal. The channel receives a value for
// each request that begins to wait.
func (p *Passthrough) Stall(ops ...Op) <-chan struct{} {
	p.t.Helper()
	p.command(command{Ops: ops, Stall: true})
	return p.server.stalled
}

// Heal ends all faults, so that waiting requests go on.
func (p *Passthrough) Heal() {
	p.t.Helper()
	p.command(command{Heal: true})
}

// Kill ends the server and leaves the mount in place: operations that wait for an
// answer, and all later ones, fail with ECONNABORTED or ENOTCONN.
func (p *Passthrough) Kill() {
	if p.server == nil {
		return
	}
	p.server.kill()
	p.server = nil
}

// Vanish unmounts lazily: the path shows the empty directory below at once, and open files
// go on working until Kill or Unmount.
func (p *Passthrough) Vanish() {
	p.t.Helper()
	if err := unix.Unmount(p.Dir, unix.MNT_DETACH); err != nil {
		p.t.Fatalf("unmount %s: %v", p.Dir, err)
	}
}

// Unmount ends the server and unmounts, in any state of the mount.
func (p *Passthrough) Unmount() {
	p.Kill()
	_ = unix.Unmount(p.Dir, unix.MNT_DETACH) // EINVAL after Vanish
}
