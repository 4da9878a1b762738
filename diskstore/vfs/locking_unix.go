//go:build unix

package vfs

import (
	"crypto/rand"
	"fmt"
	"os"
	"syscall"
)

// hostAt returns Locking.Host for the files of a directory. Two mounts of one network
// filesystem have two device numbers, the same in all containers of a system, and may keep
// separate locks. A directory without a known number shares its locks with no other
// directory.
func hostAt(name string) string {
	fi, err := os.Stat(name)
	if err == nil {
		if st, ok := fi.Sys().(*syscall.Stat_t); ok {
			return hostOn(fmt.Sprint(st.Dev))
		}
	}
	return hostOn(rand.Text())
}
