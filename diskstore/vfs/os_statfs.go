//go:build linux || darwin

package vfs

import "golang.org/x/sys/unix"

func space(name string) (Space, error) {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Statfs(name, &st) }); err != nil {
		return Space{}, err
	}
	return Space{
		Total: int64(st.Blocks) * int64(st.Bsize),
		Free:  int64(st.Bavail) * int64(st.Bsize),
	}, nil
}
