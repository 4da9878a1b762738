//go:build unix && !linux

package main

import (
	"errors"
	"os"
	"syscall"
)

// do does something to files as this user, who is the real user of this process.
func (a account) do(something func() error) (err error) {
	uid, gid := os.Geteuid(), os.Getegid()
	if err := errors.Join(syscall.Setegid(a.gid), syscall.Seteuid(a.uid)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, syscall.Seteuid(uid), syscall.Setegid(gid)) }()
	return something()
}
