//go:build unix

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/kvtier/kvtier/llamatier/front"
)

// becomeOwner has root run as the owner of a directory of pages: no other user can read them, and no
// file of root's may be left there. A link is not followed.
func becomeOwner(dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Lstat(dir)
	for errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir) // whoever owns the folder above makes it
		info, err = os.Lstat(dir)
	}
	if err != nil || !info.IsDir() {
		return nil // whoever opens it says so
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || owner.Uid == 0 {
		return nil
	}
	uid, gid := int(owner.Uid), int(owner.Gid)
	groups := []int{gid}
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		err = os.Setenv("HOME", u.HomeDir) // where its models are
		if n, e := strconv.Atoi(u.Gid); err == nil && e == nil {
			gid = n
		}
		ids, _ := u.GroupIds() // those of the owner's own process
		for _, id := range ids {
			if n, err := strconv.Atoi(id); err == nil {
				groups = append(groups, n)
			}
		}
	}
	err = errors.Join(syscall.Setgroups(groups), syscall.Setgid(gid))
	if err == nil {
		err = syscall.Setuid(uid)
	}
	if err != nil {
		return fmt.Errorf("run as user %d, the owner of %s: %w", uid, dir, err)
	}
	return nil
}

// stands stands in the place of llama-server, if this program was started by that name, and reports so.
func stands(as string) bool {
	if !front.Called(as) {
		return false
	}
	front.Main()
	return true
}

// become runs this program in the place of a llama-server. It returns only an error.
func become(real string, args []string) error { return front.Become(real, args) }
