//go:build unix

package collect

import (
	"fmt"
	"os"
	"syscall"
)

// ownerOf returns the user that a directory belongs to, and refuses a directory that is a link,
// that belongs to another user or that others can write to. A reader that is root may read
// those of others.
func ownerOf(dir string, reading bool) (uid int, err error) {
	info, err := os.Lstat(dir)
	if err != nil {
		return 0, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() {
		return 0, fmt.Errorf("%s is not a directory, remove it", dir)
	}
	uid, own := int(st.Uid), os.Geteuid()
	if uid != own && !(reading && own == 0) {
		return 0, fmt.Errorf("the directory %s: %w, user %d; this is user %d", dir, errForeign, uid, own)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return 0, fmt.Errorf("other users can write to %s, run chmod 700 %s", dir, dir)
	}
	return uid, nil
}
