package install

import "golang.org/x/sys/unix"

// noExec reports whether programs on a filesystem cannot be run.
func noExec(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Flags&unix.ST_NOEXEC != 0
}
