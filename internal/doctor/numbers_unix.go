//go:build linux || darwin

package doctor

import (
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"
)

// noFollow makes an opening of a link fail.
const noFollow = unix.O_NOFOLLOW

// numbers are the device and the inode of a file.
func numbers(info fs.FileInfo) (device, inode uint64) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Dev), st.Ino
	}
	return 0, 0
}

// inodes counts the inodes of a filesystem, 0 of 0 where they are not limited.
func inodes(path string) (all, free uint64) {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return 0, 0
	}
	return st.Files, st.Ffree
}
