package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// mountNFS mounts args: type, source, directory, options of the kernel's NFS client.
func mountNFS(args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("mount: %d arguments, want 4", len(args))
	}
	if err := unix.Mount(args[1], args[2], args[0], unix.MS_NOSUID|unix.MS_NODEV, args[3]); err != nil {
		return fmt.Errorf("mount %s at %s with %s: %w", args[1], args[2], args[3], err)
	}
	return nil
}

// unmount unmounts a directory, at once even while the directory is in use.
func unmount(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("unmount: %d arguments, want 1", len(args))
	}
	return unix.Unmount(args[0], unix.MNT_DETACH)
}
