// Guest is the program of package nfstest inside each virtual machine: the first process, and
// the commands that tests run there.
package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// verbs are the commands of the program.
var verbs = map[string]func(args []string) error{
	"clock":   clock,
	"mount":   mountNFS,
	"unmount": unmount,
	"write":   write,
	"read":    read,
	"usage":   usage,
	"hold":    hold,
}

func main() {
	if os.Getpid() == 1 {
		fmt.Fprintln(os.Stderr, "guest:", boot())
		os.Exit(1) // the kernel stops, and QEMU with it
	}
	if len(os.Args) < 2 || verbs[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "guest: unknown command")
		os.Exit(2)
	}
	if err := verbs[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

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
