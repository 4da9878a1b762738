//go:build unix

package install

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// chownDir gives a directory to a user, without following a link.
func chownDir(dir string, uid int) error {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Chown(uid, -1), f.Close())
}
