//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// becomeOwner has root run as the owner of a directory of pages: no other user can read them, and no
// file of root's may be left there. A link is not followed.
func becomeOwner(dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return nil // whoever opens it says so
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || owner.Uid == 0 {
		return nil
	}
	uid, gid := int(owner.Uid), int(owner.Gid)
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		err = os.Setenv("HOME", u.HomeDir) // where its models are
		if n, e := strconv.Atoi(u.Gid); err == nil && e == nil {
			gid = n
		}
	}
	err = errors.Join(syscall.Setgroups([]int{gid}), syscall.Setgid(gid))
	if err == nil {
		err = syscall.Setuid(uid)
	}
	if err != nil {
		return fmt.Errorf("run as user %d, the owner of %s: %w", uid, dir, err)
	}
	return nil
}
