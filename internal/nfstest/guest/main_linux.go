// Guest is the program of package nfstest inside each virtual machine: the first process, and
// the commands that tests run there.
package main

import (
	"fmt"
	"os"
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
