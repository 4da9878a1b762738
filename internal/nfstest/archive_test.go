package nfstest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// archive writes a cpio archive in the format "newc", which the kernel unpacks into the first
// filesystem of a machine. Directories are added by themselves.
type archive struct {
	w       *bufio.Writer
	written int64
	inode   int
	dirs    map[string]bool
	err     error // of the first failed write
}

// Types of files in a mode.
const (
	typeDir     = 0o040000
	typeFile    = 0o100000
	typeLink    = 0o120000
	typeDevice  = 0o020000
	cpioMagic   = "070701"
	cpioTrailer = "TRAILER!!!"
)

func newArchive(w io.Writer) *archive {
	return &archive{w: bufio.NewWriter(w), dirs: make(map[string]bool)}
}

// entry writes the header and the content of one file.
func (a *archive) entry(name string, mode, major, minor int, content []byte) {
	if a.err != nil {
		return
	}
	a.inode++
	fields := []int{a.inode, mode, 0, 0, 1, 0, len(content), 0, 0, major, minor, len(name) + 1, 0}
	a.text(cpioMagic)
	for _, field := range fields {
		a.text(fmt.Sprintf("%08x", field))
	}
	a.text(name + "\x00")
	a.align()
	a.text(string(content))
	a.align()
}

func (a *archive) text(s string) {
	n, err := a.w.WriteString(s)
	a.written += int64(n)
	if a.err == nil {
		a.err = err
	}
}

// align writes zeros up to a multiple of four bytes.
func (a *archive) align() {
	for a.written%4 != 0 {
		a.text("\x00")
	}
}

// parents adds the directories above a file.
func (a *archive) parents(name string) {
	dir := path.Dir(name)
	if dir == "." || dir == "/" || a.dirs[dir] {
		return
	}
	a.parents(dir)
	a.dirs[dir] = true
	a.entry(dir, typeDir|0o755, 0, 0, nil)
}

// dir adds a directory.
func (a *archive) dir(name string) { a.parents(name + "/x") }

// file adds a file with the given content.
func (a *archive) file(name string, perm int, content []byte) {
	a.parents(name)
	a.entry(name, typeFile|perm, 0, 0, content)
}

// link adds a symbolic link.
func (a *archive) link(name, target string) {
	a.parents(name)
	a.entry(name, typeLink|0o777, 0, 0, []byte(target))
}

// device adds a character device.
func (a *archive) device(name string, major, minor int) {
	a.parents(name)
	a.entry(name, typeDevice|0o600, major, minor, nil)
}

// copy adds a file of this machine.
func (a *archive) copy(name, from string) {
	content, err := os.ReadFile(from)
	if err != nil {
		if a.err == nil {
			a.err = err
		}
		return
	}
	a.file(name, 0o755, content)
}

// close ends the archive.
func (a *archive) close() error {
	a.entry(cpioTrailer, 0, 0, 0, nil)
	if a.err != nil {
		return a.err
	}
	return a.w.Flush()
}

// nfsPrograms are the programs of packages that run inside the machines, all in /sbin there.
var nfsPrograms = []string{
	"sbin/rpcbind", "sbin/rpc.statd", "sbin/sm-notify",
	"usr/sbin/exportfs", "usr/sbin/rpc.mountd", "usr/sbin/rpc.nfsd", "usr/sbin/nfsdcld",
}

// baseModules are the modules of each machine.
var baseModules = []string{"virtio_pci", "virtio_net", "virtio_blk", "virtio_console", "virtio_rng", "nfsd", "nfsv3", "nfsv4"}

// etcFiles are the small files that programs in a machine read.
var etcFiles = map[string]string{
	"etc/passwd":        "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n_rpc:x:101:65534::/:/bin/sh\nstatd:x:102:65534::/:/bin/sh\nwriter:x:1000:1000::/:/bin/sh\n",
	"etc/group":         "root:x:0:\nnogroup:x:65534:\nwriter:x:1000:\n",
	"etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\nrpc: files\n",
	"etc/exports":       "",
}

// writeInitramfs writes the first filesystem of all machines. Ours are programs of this
// repository: name in the machine → path here. The program named init runs first.
func writeInitramfs(w io.Writer, p *packages, hosts string, ours map[string]string) error {
	a := newArchive(w)
	for _, dir := range []string{"dev", "proc", "sys", "tmp", "run", "mnt", "srv", "var/lib", "bin"} {
		a.dir(dir)
	}
	a.device("dev/console", 5, 1)
	for name, content := range etcFiles {
		a.file(name, 0o644, []byte(content))
	}
	a.file("etc/hosts", 0o644, []byte(hosts))
	for _, name := range []string{"etc/netconfig", "etc/services", "etc/protocols", "etc/rpc"} {
		a.copy(name, filepath.Join(p.root, name))
	}
	for name, from := range ours {
		a.copy(name, from)
	}
	a.copy("bin/busybox", filepath.Join(p.root, "bin/busybox"))
	a.link("bin/sh", "busybox")
	a.link("var/run", "/run")
	if err := addPrograms(a, p); err != nil {
		return err
	}
	if err := addModules(a, p); err != nil {
		return err
	}
	return a.close()
}

// addPrograms adds the programs of NFS and their libraries.
func addPrograms(a *archive, p *packages) error {
	var paths []string
	for _, name := range nfsPrograms {
		paths = append(paths, filepath.Join(p.root, name))
		a.copy("sbin/"+filepath.Base(name), filepath.Join(p.root, name))
	}
	libraries, err := p.libraries(paths...)
	if err != nil {
		return err
	}
	for _, library := range libraries {
		a.copy(path.Join("lib/x86_64-linux-gnu", filepath.Base(library)), library)
	}
	a.link("lib64", "lib/x86_64-linux-gnu")
	return nil
}

// addModules adds the modules, and the list of their names in the order of loading.
func addModules(a *archive, p *packages) error {
	modules, err := p.moduleOrder(baseModules...)
	if err != nil {
		return err
	}
	var names []string
	for _, module := range modules {
		name := "modules/" + filepath.Base(module)
		names = append(names, "/"+name)
		a.copy(name, module)
	}
	a.file("modules/order", 0o644, []byte(strings.Join(names, "\n")))
	return nil
}

func TestArchiveOfAMissingFile(t *testing.T) {
	a := newArchive(new(bytes.Buffer))
	a.copy("file", "/does/not/exist")
	require.ErrorContains(t, a.close(), "/does/not/exist")
}
