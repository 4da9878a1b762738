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

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/llamatier/front"
)

// account is a user, with the groups that its processes have.
type account struct {
	uid, gid int
	groups   []int
	home     string // "" if it is not known
}

// accountOf completes a user's account, if the system knows it: a service with DynamicUser=yes runs as none.
func accountOf(uid, gid int) account {
	a := account{uid: uid, gid: gid, groups: []int{gid}}
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return a
	}
	a.home = u.HomeDir
	if n, err := strconv.Atoi(u.Gid); err == nil {
		a.gid = n
	}
	ids, _ := u.GroupIds()
	for _, id := range ids {
		if n, err := strconv.Atoi(id); err == nil {
			a.groups = append(a.groups, n)
		}
	}
	return a
}

// caller is the user who ran sudo, or root.
func caller() account {
	uid, uidErr := strconv.Atoi(os.Getenv("SUDO_UID"))
	gid, gidErr := strconv.Atoi(os.Getenv("SUDO_GID"))
	if uidErr != nil || gidErr != nil {
		return accountOf(0, 0)
	}
	return accountOf(uid, gid)
}

// becomeOwner has root run as the owner of a directory of pages: no other user can read them, and no file of
// root's may be left there. A link is not followed. Directories that the owner cannot reach stay open: those of
// a service with DynamicUser=yes are below one of root's. by has a.files used with the rights of the user who
// asks, and of nobody else.
func becomeOwner(a access) (by rights, err error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	me := caller()
	at, dir, err := openNearest(a.pages)
	switch {
	case err != nil && a.files && me.uid != 0: // another directory may be there when it is opened
		return me.named, accountOf(0, 0).becomeFor(me)
	case err != nil:
		return nil, nil // whoever opens it says so
	}
	info, err := dir.Stat()
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || st.Uid == 0 && (!a.files || me.uid == 0) {
		return nil, dir.Close()
	}
	opened := map[string]*os.File{at: dir}
	if a.models != "" {
		if models, err := vfs.OpenDir(a.models + "/."); err == nil {
			opened[a.models] = models
		}
	}
	owner := accountOf(int(st.Uid), int(st.Gid))
	if a.files && me.uid != owner.uid {
		by, err = me.named, owner.becomeFor(me)
	} else {
		err = owner.become()
	}
	if err != nil {
		return nil, fmt.Errorf("run as user %d, the owner of %s: %w", owner.uid, at, err)
	}
	for path, dir := range opened {
		if _, err := os.Stat(path + "/."); !errors.Is(err, fs.ErrPermission) || vfs.Hold(path, dir) != nil {
			dir.Close()
		}
	}
	return by, nil
}

func (a account) become() error {
	return errors.Join(a.atHome(), syscall.Setgroups(a.groups), syscall.Setgid(a.gid), syscall.Setuid(a.uid))
}

// becomeFor has this process run as a user for another one, who is the real user and whose groups it has.
func (a account) becomeFor(me account) error {
	return errors.Join(a.atHome(), syscall.Setgroups(me.groups), syscall.Setregid(me.gid, a.gid), syscall.Setreuid(me.uid, a.uid))
}

// atHome has Ollama's models looked for where this user has them.
func (a account) atHome() error {
	if a.home == "" || a.uid == 0 {
		return nil
	}
	return os.Setenv("HOME", a.home)
}

// named is do for a file that a person names.
func (a account) named(something func() error) error {
	err := a.do(something)
	if errors.Is(err, fs.ErrPermission) && a.uid != 0 {
		err = fmt.Errorf("%w; a file that you name is that of user %d, who ran sudo: name one in a directory of that user's", err, a.uid)
	}
	return err
}

// openNearest opens a directory of pages, or the nearest one above it, whose owner makes it. at is its path.
func openNearest(pages string) (at string, dir *os.File, err error) {
	at = pages
	dir, err = vfs.OpenDir(at)
	for errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
		at = filepath.Dir(at)
		dir, err = vfs.OpenDir(at + "/.") // a link there leads on
	}
	return at, dir, err
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
