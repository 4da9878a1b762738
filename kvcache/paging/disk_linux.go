package paging

import "golang.org/x/sys/unix"

// freeBytes is what this user may still write to the filesystem that holds dir.
func freeBytes(dir string) (uint64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, err
	}
	return fs.Bavail * uint64(fs.Bsize), nil
}
