package vfs

import (
	"io/fs"

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
