//go:build unix

package vfs

import (
	"crypto/rand"
	"fmt"
	"os"
	"syscall"
)

// hostAt returns Locking.Host for the files of a directory. Two mounts of one
// network filesystem have two device numbers, in all containers of a system, and
// may keep their locks apart. A directory whose number is not known shares its
// locks with nobody.
func hostAt(name string) string {
	fi, err := os.Stat(name)
	if err == nil {
		if st, ok := fi.Sys().(*syscall.Stat_t); ok {
			return hostOn(fmt.Sprint(st.Dev))
		}
	}
	return hostOn(rand.Text())
}
