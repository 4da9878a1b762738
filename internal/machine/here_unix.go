//go:build linux || darwin

package machine

import "golang.org/x/sys/unix"

// noFollow makes an opening of a link fail.
const noFollow = unix.O_NOFOLLOW

// inodes counts the inodes of a filesystem, 0 of 0 where they are not limited.
func inodes(path string) (all, free uint64) {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return 0, 0
	}
	return st.Files, st.Ffree
}
