package slotfile

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// mount is a filesystem of streams. No directory shows it, and its files have names below a
// descriptor of this process, so that nothing is left of it when the process ends.
type mount struct {
	root  *os.File
	path  string // of the root, for other processes
	files *fuseFiles
	ended chan struct{} // closed when nobody can reach the filesystem any more
}

// requestMax is the greatest number of bytes in a request to the filesystem.
const requestMax = 1 << 20

// newMount makes a filesystem, as root by itself, and otherwise with the help of fusermount3, in
// a folder for a moment.
func newMount(folder *Folder) (*mount, error) {
	m := &mount{files: newFuseFiles()}
	err := m.alone()
	if err != nil {
		if helped := m.helped(filepath.Join(folder.Path, mountName)); helped != nil {
			return nil, errors.Join(err, helped)
		}
	}
	return m, nil
}

// has keeps the root of the filesystem. The path stays the same after close, when the descriptor
// may be another file's: its user finds no stream there.
func (m *mount) has(root *os.File) {
	m.root, m.path = root, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), root.Fd())
}

// serve answers requests that come from a mount point, or from a descriptor of /dev/fuse.
func (m *mount) serve(point string) error {
	server, err := fuse.NewServer(m.files, point, &fuse.MountOptions{
		FsName: "kvtier", Name: "kvtier", MaxWrite: requestMax, DisableXAttrs: true, Logger: log.New(io.Discard, "", 0),
	})
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	m.ended = ended
	go func() {
		defer close(ended)
		server.Serve() // until nobody can reach the filesystem
	}()
	return nil
}

// alone makes a filesystem that is not in any directory.
func (m *mount) alone() error {
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/fuse: %w", err)
	}
	root, err := nowhere(device)
	if err != nil {
		unix.Close(device)
		return fmt.Errorf("mount a filesystem: %w", err)
	}
	m.has(root)
	if err := m.serve(fmt.Sprintf("/dev/fd/%d", device)); err != nil { // the device is closed
		m.root.Close()
		return fmt.Errorf("serve a filesystem: %w", err)
	}
	return nil
}

// nowhere makes a filesystem that a descriptor of /dev/fuse serves, and returns its root.
func nowhere(device int) (*os.File, error) {
	config, err := unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(config)
	for _, option := range [][2]string{
		{"source", "kvtier"}, {"subtype", "kvtier"}, {"fd", strconv.Itoa(device)}, {"rootmode", "40000"},
		{"user_id", strconv.Itoa(os.Geteuid())}, {"group_id", strconv.Itoa(os.Getegid())},
	} {
		if err := unix.FsconfigSetString(config, option[0], option[1]); err != nil {
			return nil, fmt.Errorf("option %s: %w", option[0], err)
		}
	}
	if err := unix.FsconfigCreate(config); err != nil {
		return nil, err
	}
	root, err := unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(root), "streams"), nil
}

// helped has fusermount3 make a filesystem, and takes it out of its directory again.
func (m *mount) helped(point string) error {
	if err := os.Mkdir(point, 0o700); err != nil {
		return err
	}
	if err := m.serve(point); err != nil {
		return errors.Join(err, os.Remove(point))
	}
	root, err := unix.Open(point, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err = errors.Join(err, detach(point), os.Remove(point)); err != nil {
		unix.Close(root)
		return err
	}
	m.has(os.NewFile(uintptr(root), "streams"))
	return nil
}

// detachTimeout bounds the time of fusermount3.
const detachTimeout = 10 * time.Second

// detach takes a filesystem out of a directory, if one is there, even if nobody serves it any more. It asks
// the filesystem nothing. A directory that still has one cannot be removed.
func detach(point string) error {
	err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil // there is none
	}
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), detachTimeout)
	defer cancel()
	for _, name := range []string{"fusermount3", "/bin/fusermount3", "fusermount", "/bin/fusermount"} {
		if path, err := exec.LookPath(name); err == nil {
			_ = exec.CommandContext(ctx, path, "-u", "-z", "-q", point).Run() // it fails where there is none
			break
		}
	}
	return nil // without rights nobody says whether there is one
}

// opened is the number of times that somebody has opened a file.
func (m *mount) opened() uint64 {
	m.files.mu.Lock()
	defer m.files.mu.Unlock()
	return m.files.opened
}

// close lets the filesystem end when nobody has a file of it open.
func (m *mount) close() { m.root.Close() }

// add adds a file and returns its path for other processes.
func (m *mount) add(name string, s Stream) string {
	m.files.add(name, s)
	return m.path + "/" + name
}

func (m *mount) remove(name string) { m.files.remove(name) }

// fuseFiles answers the requests to a filesystem. The kernel keeps nothing of it.
type fuseFiles struct {
	fuse.RawFileSystem

	mu     sync.Mutex
	next   uint64
	nodes  map[uint64]Stream
	names  map[string]uint64
	opened uint64 // times that a file was opened
}

func newFuseFiles() *fuseFiles {
	return &fuseFiles{RawFileSystem: fuse.NewDefaultRawFileSystem(), next: fuse.FUSE_ROOT_ID, nodes: make(map[uint64]Stream), names: make(map[string]uint64)}
}

func (f *fuseFiles) add(name string, s Stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++ // a number is never used again
	f.nodes[f.next], f.names[name] = s, f.next
}

func (f *fuseFiles) remove(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.nodes, f.names[name])
	delete(f.names, name)
}

func (f *fuseFiles) stream(node uint64) Stream {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nodes[node]
}

// describe fills the attributes of a file.
func describe(node uint64, s Stream, out *fuse.Attr) {
	out.Ino, out.Nlink, out.Mode, out.Size = node, 1, syscall.S_IFREG|0o600, uint64(s.Size())
	out.Owner = *fuse.CurrentOwner()
}

// Lookup implements fuse.RawFileSystem.
func (f *fuseFiles) Lookup(_ <-chan struct{}, _ *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	f.mu.Lock()
	node := f.names[name]
	s := f.nodes[node]
	f.mu.Unlock()
	if s == nil {
		return fuse.ENOENT
	}
	out.NodeId = node
	describe(node, s, &out.Attr)
	return fuse.OK
}

// GetAttr implements fuse.RawFileSystem.
func (f *fuseFiles) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	if in.NodeId == fuse.FUSE_ROOT_ID {
		out.Mode, out.Nlink, out.Owner = syscall.S_IFDIR|0o700, 2, *fuse.CurrentOwner()
		return fuse.OK
	}
	s := f.stream(in.NodeId)
	if s == nil {
		return fuse.ENOENT
	}
	describe(in.NodeId, s, &out.Attr)
	return fuse.OK
}

// SetAttr implements fuse.RawFileSystem: a program that opens a file to write begins anew.
func (f *fuseFiles) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	s, ok := f.stream(in.NodeId).(Sink)
	if size, set := in.GetSize(); !ok || set && size != 0 {
		return fuse.EPERM
	} else if set {
		if err := s.Empty(); err != nil {
			return fuse.EIO
		}
	}
	describe(in.NodeId, s, &out.Attr)
	return fuse.OK
}

// Open implements fuse.RawFileSystem.
func (f *fuseFiles) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	s := f.stream(in.NodeId)
	_, source := s.(Source)
	_, sink := s.(Sink)
	switch mode := in.Flags & syscall.O_ACCMODE; {
	case s == nil:
		return fuse.ENOENT
	case !(source && mode == syscall.O_RDONLY) && !(sink && mode == syscall.O_WRONLY):
		return fuse.EACCES
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened++
	out.OpenFlags = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_NOFLUSH
	return fuse.OK
}

// Read implements fuse.RawFileSystem.
func (f *fuseFiles) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	s, ok := f.stream(in.NodeId).(Source)
	if !ok {
		return nil, fuse.EIO
	}
	n, err := s.ReadAt(buf, int64(in.Offset))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fuse.EIO
	}
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

// Write implements fuse.RawFileSystem.
func (f *fuseFiles) Write(_ <-chan struct{}, in *fuse.WriteIn, p []byte) (uint32, fuse.Status) {
	s, ok := f.stream(in.NodeId).(Sink)
	if !ok {
		return 0, fuse.EIO
	}
	n, err := s.WriteAt(p, int64(in.Offset))
	if err != nil {
		return 0, fuse.EIO
	}
	return uint32(n), fuse.OK
}

// newMemory makes a file in memory, and returns the path by which other processes open it.
// Closing the file frees the memory.
func newMemory() (f *os.File, path string, err error) {
	// A system with vm.memfd_noexec=2 refuses files that may be executed.
	fd, err := unix.MemfdCreate("kvtier-slot", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("kvtier-slot", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, "", fmt.Errorf("make a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), "kvtier-slot"), fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), nil
}

// opens returns a channel that is closed when a process opens a file, unless stop was called before.
func opens(path string) (opened <-chan struct{}, stop func() error, err error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, nil, err
	}
	events := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_OPEN); err != nil {
		return nil, nil, errors.Join(err, events.Close())
	}
	c := make(chan struct{})
	go func() {
		var event [unix.SizeofInotifyEvent]byte
		if _, err := io.ReadFull(events, event[:]); err == nil && binary.NativeEndian.Uint32(event[4:])&unix.IN_OPEN != 0 {
			close(c)
		}
	}()
	return c, events.Close, nil
}
