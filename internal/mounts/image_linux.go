package mounts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Sizes that mkfs accepts, in bytes.
const (
	Ext4Bytes = 64 << 20
	XFSBytes  = 300 << 20
)

// fillStep bounds the error of Fill, in bytes.
const fillStep = 64 << 10

// Image is a filesystem in a sparse file on a loop device.
type Image struct {
	Dir string // mount point, owned by root, mode 0700

	t testing.TB
}

// NewImage makes a filesystem of the given type ("ext4" or "xfs") and size in bytes and
// mounts it until the test ends. NewImage skips the test where that cannot be done.
func NewImage(t testing.TB, fstype string, size int64) *Image {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a filesystem image needs root")
	}
	mkfs, err := exec.LookPath("mkfs." + fstype)
	if err != nil {
		t.Skipf("there is no mkfs.%s: install the package that has it (e2fsprogs, xfsprogs)", fstype)
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skipf("this machine has no loop devices: %v", err)
	}
	file := filepath.Join(t.TempDir(), fstype+".img")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, size)); err != nil {
		t.Fatal(err)
	}
	args := []string{"-q", file}
	if fstype == "ext4" {
		args = []string{"-q", "-F", "-m", "0", file} // root may not use more than others
	}
	if out, err := exec.Command(mkfs, args...).CombinedOutput(); err != nil {
		t.Fatalf("make %s in %s: %v: %s", fstype, file, err, out)
	}
	dir := t.TempDir()
	// The loop device is freed with the unmount.
	if out, err := exec.Command("mount", "-t", fstype, "-o", "loop,nosuid,nodev", file, dir).CombinedOutput(); err != nil {
		t.Skipf("this machine cannot mount %s from a loop device: %v: %s", fstype, err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return &Image{Dir: dir, t: t}
}

// Fill writes one file that leaves about `free` bytes free, and returns a function that removes the file.
func (i *Image) Fill(free int64) (empty func()) {
	i.t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(i.Dir, &st); err != nil {
		i.t.Fatalf("look at %s: %v", i.Dir, err)
	}
	f, err := os.CreateTemp(i.Dir, "filler")
	if errors.Is(err, unix.ENOSPC) {
		return func() {}
	}
	if err != nil {
		i.t.Fatal(err)
	}
	defer f.Close()
	// The filesystem needs some of the free space for itself.
	for size := int64(st.Bavail)*st.Bsize - free; size > 0; size -= fillStep {
		err := unix.Fallocate(int(f.Fd()), 0, 0, size)
		if err == nil {
			break
		}
		if err != unix.ENOSPC && err != unix.EINTR {
			i.t.Fatalf("fill %s with %d bytes: %v", i.Dir, size, err)
		}
	}
	return func() {
		if err := os.Remove(f.Name()); err != nil {
			i.t.Errorf("remove the filler: %v", err)
		}
	}
}
