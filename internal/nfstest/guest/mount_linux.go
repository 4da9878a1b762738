package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// mountNFS mounts args: type, source, directory, options of the kernel's NFS client.
func mountNFS(args []string) error {
	if err := unix.Mount(args[1], args[2], args[0], unix.MS_NOSUID|unix.MS_NODEV, args[3]); err != nil {
		return fmt.Errorf("mount %s at %s with %s: %w", args[1], args[2], args[3], err)
	}
	return nil
}

// unmount unmounts a directory, at once even while the directory is in use.
func unmount(args []string) error {
	return unix.Unmount(args[0], unix.MNT_DETACH)
}
