package mounts

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Environment variables that turn a process into a server.
const (
	sourceEnv = "KVTIER_PASSTHROUGH_SOURCE"
	dirEnv    = "KVTIER_PASSTHROUGH_DIR"
)

func init() {
	if source := os.Getenv(sourceEnv); source != "" {
		serve(source, os.Getenv(dirEnv))
		os.Exit(0)
	}
}

// command is a command to a server: to set its speed, to add a fault, or to end all faults.
type command struct {
	Limit *int64 // bytes per second, 0 for any number
	Heal  bool
	Ops   []Op
	Errno syscall.Errno
	Once  bool
	Stall bool
}

// reply answers a command, or reports that a request stalls.
type reply struct {
	Error   string
	Stalled bool
}

// serve mounts source on dir and obeys commands until their pipe closes. Then the test has
// ended, perhaps without unmounting.
func serve(source, dir string) {
	out := &replies{out: json.NewEncoder(os.Stdout)}
	faults := &faults{out: out, healed: make(chan struct{})}
	if err := mount(source, dir, faults); err != nil {
		out.send(reply{Error: err.Error()})
		return
	}
	out.send(reply{})
	for in := json.NewDecoder(os.Stdin); ; {
		var c command
		if in.Decode(&c) != nil {
			break
		}
		switch {
		case c.Limit != nil:
			faults.link.limit(*c.Limit)
		case c.Heal:
			faults.heal()
		default:
			faults.add(&c)
		}
		out.send(reply{})
	}
	_ = unix.Unmount(dir, unix.MNT_DETACH)
}

func mount(source, dir string, faults *faults) error {
	root, err := fs.NewLoopbackRoot(source)
	if err != nil {
		return fmt.Errorf("open %s: %w", source, err)
	}
	none := time.Duration(0)
	raw := fs.NewNodeFS(root, &fs.Options{EntryTimeout: &none, AttrTimeout: &none, NegativeTimeout: &none})
	server, err := fuse.NewServer(&faulty{RawFileSystem: raw, faults: faults}, dir, &fuse.MountOptions{
		FsName: "kvtier-test", Name: "passthrough", DirectMountStrict: true, DisableXAttrs: true,
	})
	if err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	go server.Serve()
	return server.WaitMount()
}

// replies is the server's output.
type replies struct {
	mu  sync.Mutex
	out *json.Encoder
}

func (r *replies) send(one reply) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.out.Encode(one) // the test may have ended
}

// faults decides the fate of each request.
type faults struct {
	out  *replies
	link link

	mu     sync.Mutex
	active []*command
	healed chan struct{} // closed by heal
}

func (f *faults) add(c *command) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.active = append(f.active, c)
}

func (f *faults) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.healed)
	f.active, f.healed = nil, make(chan struct{})
}

// enter returns the answer to a request; fuse.OK carries the request out.
func (f *faults) enter(op Op) fuse.Status {
	f.mu.Lock()
	healed := f.healed
	i := slices.IndexFunc(f.active, func(c *command) bool { return slices.Contains(c.Ops, op) })
	if i < 0 {
		f.mu.Unlock()
		return fuse.OK
	}
	hit := f.active[i]
	if hit.Once {
		f.active = slices.Delete(f.active, i, i+1)
	}
	f.mu.Unlock()
	if !hit.Stall {
		return fuse.Status(hit.Errno)
	}
	f.out.send(reply{Stalled: true})
	<-healed
	return fuse.OK
}

// faulty consults its faults before it carries out a request. Requests without a method
// below cannot be made to fail: the page store does not need them, or they have no answer.
type faulty struct {
	fuse.RawFileSystem
	faults *faults
}

type cancel = <-chan struct{}

// unless carries a request out, unless requests of its kind fail.
func (f *faulty) unless(op Op, do func() fuse.Status) fuse.Status {
	if s := f.faults.enter(op); !s.Ok() {
		return s
	}
	return do()
}

func (f *faulty) Lookup(c cancel, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return f.unless(OpLookup, func() fuse.Status { return f.RawFileSystem.Lookup(c, in, name, out) })
}

func (f *faulty) GetAttr(c cancel, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return f.unless(OpGetAttr, func() fuse.Status { return f.RawFileSystem.GetAttr(c, in, out) })
}

func (f *faulty) SetAttr(c cancel, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	return f.unless(OpSetAttr, func() fuse.Status { return f.RawFileSystem.SetAttr(c, in, out) })
}

func (f *faulty) Mkdir(c cancel, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return f.unless(OpMkdir, func() fuse.Status { return f.RawFileSystem.Mkdir(c, in, name, out) })
}

func (f *faulty) Unlink(c cancel, in *fuse.InHeader, name string) fuse.Status {
	return f.unless(OpUnlink, func() fuse.Status { return f.RawFileSystem.Unlink(c, in, name) })
}

func (f *faulty) Rmdir(c cancel, in *fuse.InHeader, name string) fuse.Status {
	return f.unless(OpRmdir, func() fuse.Status { return f.RawFileSystem.Rmdir(c, in, name) })
}

func (f *faulty) Rename(c cancel, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	return f.unless(OpRename, func() fuse.Status { return f.RawFileSystem.Rename(c, in, oldName, newName) })
}

func (f *faulty) Create(c cancel, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	return f.unless(OpCreate, func() fuse.Status {
		defer func() { out.OpenFlags |= fuse.FOPEN_DIRECT_IO }()
		return f.RawFileSystem.Create(c, in, name, out)
	})
}

func (f *faulty) Open(c cancel, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return f.unless(OpOpen, func() fuse.Status {
		defer func() { out.OpenFlags |= fuse.FOPEN_DIRECT_IO }()
		return f.RawFileSystem.Open(c, in, out)
	})
}

func (f *faulty) Read(c cancel, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if s := f.faults.enter(OpRead); !s.Ok() {
		return nil, s
	}
	f.faults.link.carry(len(buf))
	return f.RawFileSystem.Read(c, in, buf)
}

func (f *faulty) Write(c cancel, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	if s := f.faults.enter(OpWrite); !s.Ok() {
		return 0, s
	}
	f.faults.link.carry(len(data))
	return f.RawFileSystem.Write(c, in, data)
}

func (f *faulty) Flush(c cancel, in *fuse.FlushIn) fuse.Status {
	return f.unless(OpFlush, func() fuse.Status { return f.RawFileSystem.Flush(c, in) })
}

func (f *faulty) Fsync(c cancel, in *fuse.FsyncIn) fuse.Status {
	return f.unless(OpFsync, func() fuse.Status { return f.RawFileSystem.Fsync(c, in) })
}

func (f *faulty) OpenDir(c cancel, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return f.unless(OpOpenDir, func() fuse.Status { return f.RawFileSystem.OpenDir(c, in, out) })
}

func (f *faulty) ReadDir(c cancel, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.unless(OpReadDir, func() fuse.Status { return f.RawFileSystem.ReadDir(c, in, out) })
}

func (f *faulty) ReadDirPlus(c cancel, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.unless(OpReadDir, func() fuse.Status { return f.RawFileSystem.ReadDirPlus(c, in, out) })
}

func (f *faulty) FsyncDir(c cancel, in *fuse.FsyncIn) fuse.Status {
	return f.unless(OpFsyncDir, func() fuse.Status { return f.RawFileSystem.FsyncDir(c, in) })
}

func (f *faulty) StatFs(c cancel, in *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	return f.unless(OpStatFs, func() fuse.Status { return f.RawFileSystem.StatFs(c, in, out) })
}
