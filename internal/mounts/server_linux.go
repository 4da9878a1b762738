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
	out := newReplies()
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

func newReplies() *replies { return &replies{out: json.NewEncoder(os.Stdout)} }

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
