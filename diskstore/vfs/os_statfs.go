//go:build linux || darwin

package vfs

import (
	"errors"

	"golang.org/x/sys/unix"
)

func space(name string) (Space, error) {
	var st unix.Statfs_t
	err := unix.Statfs(name, &st)
	for errors.Is(err, unix.EINTR) { // network filesystems may be interrupted
		err = unix.Statfs(name, &st)
	}
	if err != nil {
		return Space{}, err
	}
	return Space{
		Total: int64(st.Blocks) * int64(st.Bsize),
		Free:  int64(st.Bavail) * int64(st.Bsize),
	}, nil
}
