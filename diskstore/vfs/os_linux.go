package vfs

import (
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

func isRAM(name string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(name, &st); err != nil {
		return false, &fs.PathError{Op: "statfs", Path: name, Err: err}
	}
	// The field's type differs between architectures; the magic fits in 32 bits.
	switch uint32(st.Type) {
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		return true, nil
	}
	return false, nil
}

// uncache drops the clean pages of a file from the page cache. A network filesystem then
// asks its server again.
func uncache(f *os.File) error {
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return &fs.PathError{Op: "fadvise", Path: f.Name(), Err: err}
	}
	return nil
}
