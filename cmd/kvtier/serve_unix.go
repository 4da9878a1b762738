//go:build unix

package main

import (
	"fmt"
	"os"
	"syscall"
)

// become runs another program in place of this one. It returns only an error.
func become(program string, args []string) error {
	err := syscall.Exec(program, append([]string{program}, args...), os.Environ())
	return fmt.Errorf("run %s: %w", program, err)
}
