//go:build unix

package main

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

// alive reports whether a process runs. A zombie, whose parent has not waited for it yet,
// does not run.
func alive(pid int) bool {
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		return !bytes.Contains(stat, []byte(") Z "))
	}
	return syscall.Kill(pid, 0) == nil
}
