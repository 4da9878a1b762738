package tierenv

import "golang.org/x/sys/unix"

func isNetwork(path string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return false, err
	}
	return st.Flags&unix.MNT_LOCAL == 0, nil
}
