package main

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// do does something to files as this user, who is the real user of this process. Only this thread gets the
// rights: a change of all would wait for those that a disk keeps waiting.
func (a account) do(something func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	files := func(uid, gid int) {
		_ = unix.Setfsgid(gid) // its errors are silent
		_ = unix.Setfsuid(uid)
	}
	files(a.uid, a.gid)
	defer files(os.Geteuid(), os.Getegid())
	if now, err := unix.SetfsuidRetUid(-1); now != a.uid { // no user: nothing is set
		return fmt.Errorf("files cannot be used as user %d: %w", a.uid, err)
	}
	return something()
}
